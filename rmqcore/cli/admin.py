"""``rmqcore admin``: the everyday commands of RocketMQ's mqadmin, under its names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer

from rmqcore.cli.exit_codes import EXIT_CODES, ExitCode
from rmqcore.cli.failures import StoreCommand
from rmqcore.cli.named import (
    broker_address,
    broker_name,
    expect_group,
    expect_topic,
    remote_groups,
    remote_topics,
)
from rmqcore.cli.notes import note
from rmqcore.cli.options import AsJson, Long
from rmqcore.cli.output import print_facts, print_json, print_message, print_table, time_text
from rmqcore.cli.remote import (
    DEFAULT_NAME_SERVER,
    AccessKey,
    NameServer,
    SecretKey,
    Tls,
    access,
)
from rmqcore.cli.tables import cell_text
from rmqcore.cli.times import parse_time
from rmqcore.client.blocking import Admin
from rmqcore.client.results import MessageQueue

app = typer.Typer(
    help="Administer any RocketMQ: the everyday commands of mqadmin, under its names.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
)

Topic = Annotated[
    str, typer.Option("--topic", "-t", help="the topic", autocompletion=remote_topics)
]
Group = Annotated[
    str, typer.Option("--group", "-g", help="the group", autocompletion=remote_groups)
]
Broker = Annotated[str, typer.Option("--broker", "-b", help="the broker: host:port, or its name")]
Brokers = Annotated[
    list[str] | None,
    typer.Option(
        "--broker", "-b", help="a broker, host:port or its name; repeatable; all masters without it"
    ),
]


def _remote(
    namesrv: NameServer = DEFAULT_NAME_SERVER,
    access_key: AccessKey = None,
    secret_key: SecretKey = None,
    tls: Tls = False,
) -> Admin:
    """The admin that the options, which all commands have, ask for."""
    allowed = access(access_key, secret_key, tls)
    return Admin(namesrv, acl=allowed.acl, tls=allowed.tls)


def _command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function of (admin, its own options)."""
    shared = inspect.signature(_remote, eval_str=True).parameters

    def decorated(work: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(work, eval_str=True).parameters.values())[1:]

        def run(**given: Any) -> None:
            with _remote(**{option: given.pop(option) for option in shared}) as admin:
                work(admin, **given)

        options = [*own[:-1], *shared.values(), own[-1]]
        named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in options]
        taken: Any = run
        taken.__signature__ = inspect.Signature(named)
        run.__annotations__ = {each.name: each.annotation for each in named}
        run.__doc__, run.__name__ = work.__doc__, work.__name__
        app.command(name, cls=StoreCommand, epilog=EXIT_CODES)(run)
        return work

    return decorated


def _show(rows: Iterable[Mapping[str, object]], columns: tuple[str, ...], as_json: bool) -> None:
    """Print rows: JSON with names as keys, or a table with times as people read them."""
    listed = list(rows)
    if as_json:
        print_json(listed)
        return
    numbers = [
        name
        for name in columns
        if not name.endswith("_ms") and all(type(row[name]) is int for row in listed)
    ]
    cells = (
        [
            time_text(int(str(row[name])) or None) if name.endswith("_ms") else row[name]
            for name in columns
        ]
        for row in listed
    )
    heads = [name.removesuffix("_ms").replace("_", " ") for name in columns]
    right = [name.replace("_", " ") for name in numbers]
    print_table(heads, cells, right=right)


def _queue(queue: MessageQueue) -> dict[str, object]:
    return dict(queue._asdict())


_QUEUE = ("topic", "broker_name", "queue_id")


def _addresses(admin: Admin, brokers: list[str] | None) -> list[str] | None:
    return [broker_address(admin, each) for each in brokers] if brokers else None


# ---- clusters and brokers


@_command("clusterList")
def cluster_list(admin: Admin, as_json: AsJson = False) -> None:
    """Every broker, with its version and messages a second."""
    rows: list[dict[str, object]] = []
    for entry in admin.clusters():
        for broker_id, address in sorted(entry.addresses.items()):
            figures = admin.runtime_info(address)
            rows.append(
                {
                    "cluster": entry.cluster,
                    "broker_name": entry.broker_name,
                    "broker_id": broker_id,
                    "address": address,
                    "version": figures.get("brokerVersionDesc", ""),
                    "put_tps": _rate(figures.get("putTps", "")),
                    "get_tps": _rate(figures.get("getTransferredTps", "")),
                }
            )
    columns = ("cluster", "broker_name", "broker_id", "address", "version", "put_tps", "get_tps")
    _show(rows, columns, as_json)


def _rate(rates: str) -> str:
    """Of a broker's rates over the last 10, 60 and 600 seconds the first, to two places."""
    first = rates.partition(" ")[0]
    try:
        return f"{float(first):.2f}"
    except ValueError:
        return first


@_command("brokerStatus")
def broker_status(admin: Admin, broker: Broker, as_json: AsJson = False) -> None:
    """A broker's figures."""
    figures = admin.runtime_info(broker_address(admin, broker))
    _facts(figures, as_json)


@_command("getBrokerConfig")
def get_broker_config(admin: Admin, broker: Broker, as_json: AsJson = False) -> None:
    """A broker's settings."""
    settings = admin.broker_config(broker_address(admin, broker))
    _facts(settings, as_json)


@_command("updateBrokerConfig")
def update_broker_config(
    admin: Admin,
    broker: Broker,
    key: Annotated[str, typer.Option("--key", "-k", help="RocketMQ's name of the setting")],
    value: Annotated[str, typer.Option("--value", "-v", help="its value")],
    as_json: AsJson = False,
) -> None:
    """Change a setting of a broker while it runs."""
    admin.update_broker_config(broker_address(admin, broker), {key: value})
    _done({"broker": broker, key: value}, as_json)


@_command("wipeWritePerm")
def wipe_write_perm(admin: Admin, broker: Broker, as_json: AsJson = False) -> None:
    """Let clients send nothing to a broker any more."""
    name = broker_name(admin, broker)
    topics = admin.set_write_permission(name, allowed=False)
    _done({"broker_name": name, "topics": topics}, as_json)


@_command("addWritePerm")
def add_write_perm(admin: Admin, broker: Broker, as_json: AsJson = False) -> None:
    """Let clients send to a broker again."""
    name = broker_name(admin, broker)
    topics = admin.set_write_permission(name, allowed=True)
    _done({"broker_name": name, "topics": topics}, as_json)


# ---- topics


@_command("topicList")
def topic_list(admin: Admin, as_json: AsJson = False) -> None:
    """The names of all topics."""
    names = admin.topics()
    if as_json:
        print_json(names)
    else:
        typer.echo("\n".join(map(cell_text, names)))


@_command("topicRoute")
def topic_route(admin: Admin, topic: Topic, as_json: AsJson = False) -> None:
    """Which brokers have a topic's queues."""
    route = admin.route(topic)
    rows = [
        {
            "broker_name": data.broker_name,
            "addresses": " ".join(route.brokers.get(data.broker_name, {}).values()),
            "read_queues": data.read_queue_count,
            "write_queues": data.write_queue_count,
            "perm": data.perm,
        }
        for data in route.queues
    ]
    _show(rows, ("broker_name", "addresses", "read_queues", "write_queues", "perm"), as_json)


@_command("topicStatus")
def topic_status(admin: Admin, topic: Topic, as_json: AsJson = False) -> None:
    """Where each queue of a topic begins and ends."""
    stats = admin.topic_stats(topic)
    rows = [
        _queue(each.queue)
        | {
            "min_offset": each.min_offset,
            "max_offset": each.max_offset,
            "last_update_ms": each.last_update_ms,
        }
        for each in stats
    ]
    _show(rows, (*_QUEUE, "min_offset", "max_offset", "last_update_ms"), as_json)


@_command("updateTopic")
def update_topic(
    admin: Admin,
    topic: Topic,
    queues: Annotated[int, typer.Option("--queues", "-q", min=1, help="queues a broker")] = 8,
    perm: Annotated[int, typer.Option("--perm", "-p", help="4 read + 2 write")] = 6,
    order: Annotated[bool, typer.Option("--order", "-o", help="an order topic")] = False,
    attributes: Annotated[str, typer.Option("--attributes", "-a", help="+name=value,-name")] = "",
    brokers: Brokers = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic, or change it."""
    admin.create_topic(
        topic,
        queues=queues,
        perm=perm,
        order=order,
        attributes=attributes,
        brokers=_addresses(admin, brokers),
    )
    _done({"topic": topic, "queues": queues, "perm": perm}, as_json)


@_command("deleteTopic")
def delete_topic(admin: Admin, topic: Topic, as_json: AsJson = False) -> None:
    """Delete a topic everywhere."""
    expect_topic(admin, topic)
    admin.delete_topic(topic)
    _done({"topic": topic}, as_json)


# ---- groups


@_command("updateSubGroup")
def update_sub_group(
    admin: Admin,
    group: Group,
    retry_max: Annotated[int, typer.Option("--retry-max", "-r", help="tries of a message")] = 16,
    retry_queues: Annotated[int, typer.Option("--retry-queues", "-q", help="of its topic")] = 1,
    brokers: Brokers = None,
    as_json: AsJson = False,
) -> None:
    """Create a consumer group, or change it."""
    admin.create_group(
        group,
        retry_max_times=retry_max,
        retry_queues=retry_queues,
        brokers=_addresses(admin, brokers),
    )
    _done({"group": group, "retry_max_times": retry_max}, as_json)


@_command("deleteSubGroup")
def delete_sub_group(admin: Admin, group: Group, as_json: AsJson = False) -> None:
    """Delete a consumer group, and what it has consumed."""
    expect_group(admin, group)
    admin.delete_group(group)
    _done({"group": group}, as_json)


@_command("consumerProgress")
def consumer_progress(
    admin: Admin,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", help="the group; all of them without", autocompletion=remote_groups
        ),
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="only this topic")] = None,
    as_json: AsJson = False,
) -> None:
    """How far a group is, queue by queue; without one, how far each group is."""
    if group is None:
        _all_progress(admin, topic, as_json)
        return
    progress = admin.consumer_progress(group, topic)
    rows = [
        _queue(each.queue)
        | {
            "broker_offset": each.broker_offset,
            "consumer_offset": each.consumer_offset,
            "lag": each.lag,
            "last_timestamp_ms": each.last_timestamp_ms,
        }
        for each in progress
    ]
    columns = (*_QUEUE, "broker_offset", "consumer_offset", "lag", "last_timestamp_ms")
    _show(rows, columns, as_json)


def _all_progress(admin: Admin, topic: str | None, as_json: bool) -> None:
    """A row a group: those that brokers only keep for themselves have consumed nothing."""
    rows = []
    for group in admin.groups():
        progress = admin.consumer_progress(group, topic)
        rows.append(
            {
                "group": group,
                "topics": len({each.queue.topic for each in progress}),
                "consumers": len(admin.consumers(group)),
                "lag": sum(each.lag for each in progress),
            }
        )
    _show(rows, ("group", "topics", "consumers", "lag"), as_json)


@_command("consumerConnection")
def consumer_connection(admin: Admin, group: Group, as_json: AsJson = False) -> None:
    """The consumers of a group that are connected; exits with 1 when there are none."""
    _clients(admin.consumers(group), as_json)


@_command("producerConnection")
def producer_connection(admin: Admin, group: Group, topic: Topic, as_json: AsJson = False) -> None:
    """The producers of a group that are connected; exits with 1 when there are none."""
    _clients(admin.producers(group, topic), as_json)


@_command("resetOffsetByTime")
def reset_offset_by_time(
    admin: Admin,
    group: Group,
    topic: Topic,
    when: Annotated[
        str,
        typer.Option(
            "--timestamp", "-s", metavar="TIME", help="'now' is the end of the queues, 0 the begin"
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Let a group go on at the messages of a time."""
    expect_topic(admin, topic)
    timestamp_ms = -1 if when == "now" else parse_time(when)
    offsets = admin.reset_offsets(group, topic, 0 if timestamp_ms is None else timestamp_ms)
    rows = [_queue(queue) | {"offset": offset} for queue, offset in offsets.items()]
    _show(rows, (*_QUEUE, "offset"), as_json)


# ---- messages


@_command("queryMsgById")
def query_msg_by_id(
    admin: Admin,
    message_id: Annotated[str, typer.Option("--id", "-i", help="a broker's message id")],
    long: Long = False,
    as_json: AsJson = False,
) -> None:
    """The message that a broker's id names."""
    print_message(admin.message_by_id(message_id).stored, as_json=as_json, long=long)


@_command("queryMsgByKey")
def query_msg_by_key(
    admin: Admin,
    topic: Topic,
    key: Annotated[str, typer.Option("--key", "-k", help="one of the message's keys")],
    long: Long = False,
    as_json: AsJson = False,
) -> None:
    """The messages with a key; exits with 1 when there are none."""
    _query(admin, topic, key, unique=False, long=long, as_json=as_json)


@_command("queryMsgByUniqueKey")
def query_msg_by_unique_key(
    admin: Admin,
    topic: Topic,
    message_id: Annotated[str, typer.Option("--id", "-i", help="the producer's message id")],
    long: Long = False,
    as_json: AsJson = False,
) -> None:
    """The message with a producer's id; exits with 1 when there is none."""
    _query(admin, topic, message_id, unique=True, long=long, as_json=as_json)


def _query(admin: Admin, topic: str, key: str, *, unique: bool, long: bool, as_json: bool) -> None:
    found = admin.messages_by_key(topic, key, unique=unique)
    for message in found:
        print_message(message.stored, as_json=as_json, long=long)
    if not found:
        note(f"{topic} has no message with {key}")
        raise typer.Exit(ExitCode.FINDINGS)


def _clients(clients: Iterable[Any], as_json: bool) -> None:
    columns = ("client_id", "address", "language", "version")
    rows = [{name: getattr(each, name) for name in columns} for each in clients]
    _show(rows, columns, as_json)
    if not rows:
        raise typer.Exit(ExitCode.FINDINGS)


def _facts(facts: Mapping[str, str], as_json: bool) -> None:
    if as_json:
        print_json(dict(sorted(facts.items())))
    else:
        print_facts(dict(sorted(facts.items())))


def _done(facts: Mapping[str, object], as_json: bool) -> None:
    """Say what was done."""
    if as_json:
        print_json(facts)
    else:
        typer.echo(", ".join(f"{name} {value}" for name, value in facts.items()) + ": done")
