"""What the help says of commands before one is imported: in which group each is, what it does.

And examples, of each command the most wanted first.
"""

from __future__ import annotations

from typing import Final

#: panel -> its commands, in this order
PANELS: Final = {
    "Look into a store": ("stat", "cat", "tail", "query", "offsets", "sql", "dump", "web"),
    "Check and repair": ("doctor", "verify", "rebuild", "selftest", "debug"),
    "Write and move": ("put", "export", "import", "archive", "restore", "table"),
    "Serve": ("serve", "broker", "namesrv", "proxy"),
    "Send, receive, administer": ("produce", "consume", "admin", "ha"),
    "More": ("demo", "bench", "spark", "metaq", "man"),
}
#: What a command does, in the first words of its own help.
SHORT: Final = {
    "admin": "Administer any RocketMQ: the everyday commands of mqadmin, under its names.",
    "archive": "Bring the sealed log files of a store, cold or live, to object storage.",
    "bench": "Measure puts and gets in a scratch directory, beside what its disk does alone.",
    "broker": "Serve a store as a broker that registers with the name servers of namesrvAddr.",
    "cat": "Print messages: the whole log, or queues of a topic one after the other.",
    "consume": "Print a topic's messages as they come, and settle each; until Ctrl-C.",
    "debug": "What a report of a defect needs.",
    "demo": "Put real text, read it back in every way, kill a writer, recover; compare all of it.",
    "doctor": "Say what is wrong with a store, and repair it; every repair can be undone.",
    "dump": "Show any file of a store field by field, with positions and bytes.",
    "export": "Write the messages of a store, cold or live, to files.",
    "ha": "Masters and slaves: how far they are in step.",
    "import": "Put exported messages into a store, with their topics, queues, keys, properties.",
    "man": "Print the manual page of rmqcore, or of one command.",
    "metaq": "The older MetaQ store.",
    "namesrv": "Serve as a name server that RocketMQ's brokers register with.",
    "offsets": "List the offsets of consumer groups, and how far they are behind.",
    "produce": "Send messages through a broker; prints where each is.",
    "proxy": "Serve brokers elsewhere to RocketMQ 5's own clients, over gRPC.",
    "put": "Put messages into a topic; the store is created when it is missing.",
    "query": "Find messages by key, id, time or physical offset.",
    "rebuild": "Write consume queues or index of a cold store anew, from its log alone.",
    "restore": "Write the store that an archive has: its log byte for byte, queues and index.",
    "selftest": "Damage stores of its own in every way, and see what is left; needs Linux.",
    "serve": "Serve a store: a name server and a broker for RocketMQ's clients, until Ctrl-C.",
    "spark": "Whole stores in Spark: rebuild, audit, export, find, measure.",
    "sql": "Ask a store in SQL; topics are tables.",
    "stat": "Say what a store holds: topics, queues, sizes, lag, times, broker.conf lines.",
    "table": "Keep a Delta or Iceberg table up to date with a topic, until Ctrl-C.",
    "tail": "Print the last messages; with -f go on with what is added.",
    "web": "Show a store in a browser, opened for reading only, until Ctrl-C.",
    "verify": "Check log, consume queues, index, checkpoint, and that they agree.",
}

#: command -> lines to type
EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "": (
        "rmqcore stat STORE",
        "rmqcore cat STORE Orders --since 15m",
        "rmqcore doctor STORE",
        "rmqcore serve STORE",
    ),
    "admin": ("rmqcore admin clusterList", "rmqcore admin topicList -n 10.0.0.1:9876"),
    "admin addWritePerm": ("rmqcore admin addWritePerm -b broker-a",),
    "admin brokerStatus": (
        "rmqcore admin brokerStatus -b broker-a",
        "rmqcore admin brokerStatus -b 127.0.0.1:10911 --json",
    ),
    "admin clusterList": ("rmqcore admin clusterList -n 10.0.0.1:9876",),
    "admin consumerConnection": ("rmqcore admin consumerConnection -g billing",),
    "admin consumerProgress": (
        "rmqcore admin consumerProgress",
        "rmqcore admin consumerProgress -g billing -t Orders",
    ),
    "admin deleteSubGroup": ("rmqcore admin deleteSubGroup -g billing",),
    "admin deleteTopic": ("rmqcore admin deleteTopic -t Orders",),
    "admin getBrokerConfig": ("rmqcore admin getBrokerConfig -b broker-a",),
    "admin producerConnection": ("rmqcore admin producerConnection -g shop -t Orders",),
    "admin queryMsgById": ("rmqcore admin queryMsgById -i 7F00000100002A9F00000000000001E8",),
    "admin queryMsgByKey": ("rmqcore admin queryMsgByKey -t Orders -k order-42 -l",),
    "admin queryMsgByUniqueKey": (
        "rmqcore admin queryMsgByUniqueKey -t Orders -i 7F000001660666FB720484D5C8B10000",
    ),
    "admin resetOffsetByTime": (
        "rmqcore admin resetOffsetByTime -g billing -t Orders -s 2h",
        "rmqcore admin resetOffsetByTime -g billing -t Orders -s now",
    ),
    "admin topicList": ("rmqcore admin topicList",),
    "admin topicRoute": ("rmqcore admin topicRoute -t Orders",),
    "admin topicStatus": ("rmqcore admin topicStatus -t Orders",),
    "admin updateBrokerConfig": (
        "rmqcore admin updateBrokerConfig -b broker-a -k brokerPermission -v 4",
    ),
    "admin updateSubGroup": ("rmqcore admin updateSubGroup -g billing -r 3",),
    "admin updateTopic": ("rmqcore admin updateTopic -t Orders -q 4",),
    "admin wipeWritePerm": ("rmqcore admin wipeWritePerm -b broker-a",),
    "archive": ("rmqcore archive STORE s3://bucket/orders --follow",),
    "bench": ("rmqcore bench", "rmqcore bench --dir /data --size 4096 --seconds 5"),
    "broker": ("rmqcore broker STORE --config broker.conf",),
    "cat": (
        "rmqcore cat STORE Orders --since 15m -l",
        "rmqcore cat STORE Orders --tags 'paid || refunded' --json | jq .keys",
        r"rmqcore cat STORE Orders --format '%t/%p@%o %k %s\n'",
    ),
    "consume": (
        "rmqcore consume Orders --start first -e",
        "rmqcore consume Orders -g billing --tags 'new || paid' --count 10",
        r"rmqcore consume Orders --format '%p@%o %k %s\n'",
    ),
    "debug": ("rmqcore debug bundle STORE",),
    "debug bundle": (
        "rmqcore debug bundle STORE",
        "rmqcore debug bundle STORE --out report.tar.gz --log broker.log",
    ),
    "demo": ("rmqcore demo --size 8 --no-spark", "rmqcore demo --keep /tmp/demo-store"),
    "doctor": ("rmqcore doctor STORE", "rmqcore doctor repair STORE"),
    "doctor diff": ("rmqcore doctor diff MASTER SLAVE -n 5",),
    "doctor explain": (
        "rmqcore doctor explain STORE",
        "rmqcore doctor explain STORE --topic Orders --offset 12",
        "rmqcore doctor explain STORE --topic Orders --key order-42",
    ),
    "doctor look": ("rmqcore doctor STORE", "rmqcore doctor STORE --json"),
    "doctor plan": ("rmqcore doctor plan STORE --out plan.json",),
    "doctor repair": (
        "rmqcore doctor repair STORE",
        "rmqcore doctor repair STORE --plan plan.json --yes",
    ),
    "doctor undo": ("rmqcore doctor undo STORE",),
    "dump": (
        "rmqcore dump STORE",
        "rmqcore dump STORE commitlog/00000000000000000000 --start 488 -n 1",
    ),
    "export": (
        "rmqcore export STORE out",
        "rmqcore export STORE out --format parquet --topic Orders",
    ),
    "ha": ("rmqcore ha status",),
    "ha resync": (
        "rmqcore ha resync SLAVE --master 10.0.0.1:10912",
        "rmqcore ha resync SLAVE --master 10.0.0.1:10912 --yes --fetch",
    ),
    "ha status": ("rmqcore ha status -n 10.0.0.1:9876",),
    "import": (
        "rmqcore import STORE out",
        "rmqcore import STORE queue.sqlite --from queuelib",
    ),
    "man": ("rmqcore man | man -l -", "rmqcore man cat", "rmqcore man --out /usr/share/man/man1"),
    "metaq": ("rmqcore metaq stat FOLDER",),
    "metaq admin": ("rmqcore metaq admin admin.sock flush",),
    "metaq cat": ("rmqcore metaq cat FOLDER Orders 0 -n 10",),
    "metaq config": ("rmqcore metaq config server.ini",),
    "metaq demo": ("rmqcore metaq demo --messages 10000",),
    "metaq migrate": ("rmqcore metaq migrate FOLDER STORE",),
    "metaq recover": ("rmqcore metaq recover FOLDER",),
    "metaq serve": ("rmqcore metaq serve server.ini --port 8123",),
    "metaq stat": ("rmqcore metaq stat FOLDER",),
    "metaq verify": ("rmqcore metaq verify FOLDER",),
    "namesrv": ("rmqcore namesrv --port 9876",),
    "offsets": ("rmqcore offsets STORE", "rmqcore offsets STORE billing --topic Orders --json"),
    "produce": (
        "rmqcore produce Orders one two --tags new --key o-1",
        "rmqcore produce Orders -n 10.0.0.1:9876 < lines.txt",
        "rmqcore produce Orders reminder --deliver-at 15m",
    ),
    "proxy": ("rmqcore proxy --namesrv 10.0.0.1:9876",),
    "put": (
        "rmqcore put STORE Orders lines.txt",
        "seq 1000 | rmqcore put STORE Numbers --queues 4 --tags n",
        "rmqcore put STORE Orders --as jsonl orders.jsonl",
    ),
    "query": (
        "rmqcore query STORE --key order-42 --topic Orders",
        "rmqcore query STORE --id 7F00000100002A9F00000000000001E8",
        "rmqcore query STORE --time 2024-05-01T10:00:00 --topic Orders",
        "rmqcore query STORE --key order-42 --explain",
    ),
    "rebuild": ("rmqcore rebuild cq STORE", "rmqcore rebuild index STORE"),
    "rebuild cq": ("rmqcore rebuild cq STORE --jobs 2",),
    "rebuild index": ("rmqcore rebuild index STORE --jobs 2",),
    "restore": ("rmqcore restore s3://bucket/orders STORE",),
    "selftest": ("rmqcore selftest crash --cuts 100 --kills 20",),
    "selftest crash": ("rmqcore selftest crash --cuts 100 --kills 20 --jobs 2",),
    "selftest faults": (
        "rmqcore selftest faults --max 50 --seed 7",
        "rmqcore selftest faults --store STORE --max 1000",
    ),
    "selftest simulate": (
        "rmqcore selftest simulate --seeds 20",
        "rmqcore selftest simulate --plan plan-406.json",
    ),
    "serve": (
        "rmqcore serve STORE",
        "rmqcore serve STORE --port 0 --namesrv-port 0 --json",
        "rmqcore serve STORE --host 0.0.0.0 --auth accounts.json --tls-config tls.properties",
    ),
    "spark": ("rmqcore spark audit STORE",),
    "spark audit": ("rmqcore spark audit STORE --cores 2",),
    "spark compact": ("rmqcore spark compact STORE out --topic Orders",),
    "spark export": ("rmqcore spark export STORE out --format delta",),
    "spark finish": ("rmqcore spark finish STORE",),
    "spark pipeline": ("rmqcore spark pipeline STORE out --html report.html",),
    "spark rebuild": ("rmqcore spark rebuild STORE --index",),
    "spark trace": ("rmqcore spark trace STORE --key order-42 --since 2h",),
    "spark traffic": ("rmqcore spark traffic STORE --plot traffic.html --since 1d",),
    "sql": (
        'rmqcore sql STORE "select tags, count(*) from Orders group by all"',
        "rmqcore sql STORE \"select text->>'$.id' from Orders where store_timestamp > now() - "
        'interval 15 minutes"',
        'rmqcore sql STORE "select topic, sum(store_size) from messages group by topic" --json',
    ),
    "stat": (
        "rmqcore stat STORE --queues",
        "rmqcore stat STORE --trace",
        "rmqcore stat STORE --json",
    ),
    "table": (
        "rmqcore table STORE orders --topic Orders",
        "rmqcore table namesrv://10.0.0.1:9876/Orders orders --format iceberg --every 60s",
        "rmqcore table STORE orders --topic Orders --body json --schema orders.json --once",
    ),
    "tail": ("rmqcore tail STORE Orders -n 20 -l", "rmqcore tail -f STORE"),
    "verify": (
        "rmqcore verify STORE --jobs 2",
        "rmqcore verify STORE --max-duration 10m",
    ),
    "web": ("rmqcore web STORE", "rmqcore web STORE --port 8088"),
}
