"""A producer and two consumers of RocketMQ's Python client, which go on whatever happens to it.

    python go_on.py HOST:PORT

A JSON line says what each has done: sent, received, pushed. It goes on until it is killed.
"""

import json
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
)

configuration = ClientConfiguration(sys.argv[1], Credentials())
TOPIC = "GoOn"
lock = threading.Lock()


def say(what, body):
    with lock:
        print(json.dumps({"what": what, "body": body, "at": time.time()}), flush=True)


class Listener(MessageListener):
    def consume(self, message):
        say("pushed", message.body.decode())
        return ConsumeResult.SUCCESS


def receive(consumer):
    while True:
        try:
            for message in consumer.receive(32, 30) or ():
                consumer.ack(message)
                say("received", message.body.decode())
        except Exception:  # noqa: BLE001 - a server that is not there
            time.sleep(0.1)


wanted = {TOPIC: FilterExpression()}
producer = Producer(configuration, (TOPIC,))
producer.startup()
consumer = SimpleConsumer(configuration, "simple", wanted, await_duration=2)
consumer.startup()
consumer.receive(1, 10)
pushing = PushConsumer(configuration, "push", Listener(), wanted)
pushing.startup()
threading.Thread(target=receive, args=(consumer,), daemon=True).start()
number = 0
while True:
    message = Message()
    message.topic, message.body = TOPIC, str(number).encode()
    try:
        producer.send(message)
    except Exception:  # noqa: BLE001 - a server that is not there
        time.sleep(0.1)
    else:
        say("sent", str(number))
    number += 1
    time.sleep(0.01)
