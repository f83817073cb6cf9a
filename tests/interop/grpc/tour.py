"""What RocketMQ's Python client for gRPC offers, once each: a JSON line for each.

    python tour.py HOST:PORT PREFIX [ACCESS_KEY SECRET_KEY]

It runs in an environment of its own, which has rocketmq-python-client and no rmqcore.
"""

import json
import os
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

endpoints, prefix, *keys = sys.argv[1:]
tls = os.environ.get("TOUR_TLS") == "yes"
configuration = ClientConfiguration(endpoints, Credentials(*keys))
LIMIT_S = 90


def say(**what):
    print(json.dumps(what), flush=True)


def producer_of(topic, checker=None):
    producer = Producer(configuration, (topic,), checker, tls_enable=tls)
    producer.startup()
    return producer


def consumer_of(topic, group, expression=None):
    wanted = {topic: expression or FilterExpression()}
    consumer = SimpleConsumer(
        configuration, prefix + group, wanted, await_duration=2, tls_enable=tls
    )
    consumer.startup()
    # the group is there before its messages are
    consumer.receive(1, 10)
    return consumer


def message_of(topic, body, **more):
    message = Message()
    message.topic, message.body = topic, body.encode()
    for name, value in more.items():
        setattr(message, name, value)
    return message


def receive(consumer, count, *, ack=True):
    found, until_s = [], time.monotonic() + LIMIT_S
    while len(found) < count and time.monotonic() < until_s:
        for message in consumer.receive(32, 30) or ():
            found.append(message)
            if ack:
                consumer.ack(message)
    return found


def bodies(messages):
    return [message.body.decode() for message in messages]


def plain():
    topic = prefix + "Plain"
    producer, consumer = producer_of(topic), consumer_of(topic, "plain")
    message = message_of(topic, "one", tag="tag", keys="key")
    message.add_property("name", "value")
    sent = producer.send(message)
    asynchronously = producer.send_async(message_of(topic, "two")).result(LIMIT_S)
    found = sorted(receive(consumer, 2), key=lambda each: each.body)
    first = found[0]
    say(
        what="plain",
        same=[sent.message_id, asynchronously.message_id] == [each.message_id for each in found],
        bodies=bodies(found),
        tag=first.tag,
        keys=list(first.keys),
        properties=first.properties,
        attempt=first.delivery_attempt,
    )
    consumer.shutdown()
    producer.shutdown()


def ordered():
    topic = prefix + "Ordered"
    producer, consumer = producer_of(topic), consumer_of(topic, "ordered")
    for number in range(6):
        producer.send(message_of(topic, str(number), message_group="group"))
    say(what="ordered", bodies=bodies(receive(consumer, 6)))


def tagged():
    topic = prefix + "Tagged"
    producer = producer_of(topic)
    consumer = consumer_of(topic, "tagged", FilterExpression("a || c"))
    for tag in "abc":
        producer.send(message_of(topic, tag, tag=tag))
    say(what="tagged", bodies=sorted(bodies(receive(consumer, 2))))


def later():
    topic = prefix + "Later"
    producer, consumer = producer_of(topic), consumer_of(topic, "later")
    due_s = int(time.time()) + 3
    producer.send(message_of(topic, "due", delivery_timestamp=due_s))
    receipt = producer.send(message_of(topic, "recalled", delivery_timestamp=due_s + 1))
    producer.recall_message(topic, receipt.recall_handle)
    producer.send(message_of(topic, "last", delivery_timestamp=due_s + 2))
    found = receive(consumer, 2)
    say(what="later", bodies=bodies(found), early=time.time() < due_s)


def again():
    topic = prefix + "Again"
    producer, consumer = producer_of(topic), consumer_of(topic, "again")
    producer.send(message_of(topic, "body"))
    (message,) = receive(consumer, 1, ack=False)
    consumer.change_invisible_duration(message, 10)
    (message,) = receive(consumer, 1)
    say(what="again", attempt=message.delivery_attempt, body=message.body.decode())


def transactions():
    topic = prefix + "Transactions"
    asked = threading.Event()

    class Checker(TransactionChecker):
        def check(self, message):
            asked.set()
            return TransactionResolution.COMMIT

    producer, consumer = producer_of(topic, Checker()), consumer_of(topic, "transactions")
    for how in ("commit", "rollback"):
        transaction = producer.begin_transaction()
        producer.send(message_of(topic, how), transaction)
        getattr(transaction, how)()
    producer.send(message_of(topic, "asked for"), producer.begin_transaction())
    found = bodies(receive(consumer, 2))
    say(what="transactions", bodies=found, asked=asked.is_set())


def pushed():
    topic, seen, done = prefix + "Pushed", [], threading.Event()

    class Listener(MessageListener):
        def consume(self, message):
            seen.append([message.body.decode(), message.delivery_attempt])
            if len(seen) == 3:
                done.set()
            failed = message.body == b"fails once" and message.delivery_attempt == 1
            return ConsumeResult.FAILURE if failed else ConsumeResult.SUCCESS

    wanted = {topic: FilterExpression()}
    consumer = PushConsumer(configuration, prefix + "pushed", Listener(), wanted, tls_enable=tls)
    consumer.startup()
    producer = producer_of(topic)
    for body in ("one", "fails once"):
        producer.send(message_of(topic, body))
    done.wait(LIMIT_S)
    say(what="pushed", seen=sorted(seen))


for part in (plain, ordered, tagged, later, again, transactions, pushed):
    part()
# its threads do not end by themselves
os._exit(0)
