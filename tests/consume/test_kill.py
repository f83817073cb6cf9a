"""Consumers that are killed with -9: all comes, and again only what was not acknowledged."""

import pytest
from children import Program

import rmqcore

pytestmark = pytest.mark.process

PROGRAM = """
import os, sys, rmqcore

def say(word, message):
    os.write(1, b"%s %s\\n" % (word.encode(), message.body))

with rmqcore.open_store(sys.argv[1]) as store:
    for number in range(int(sys.argv[2]), int(sys.argv[2]) + 50):
        store.put("T", b"%d" % number, queue_id=number % 3)
    os.write(1, b"put\\n")
    with rmqcore.Consumer(store, "g", {"T": "*"}) as consumer:
        for message in consumer:
            say("got", message)
            if int(message.body) % 7 == 0 and message.reconsume_times < 1:
                consumer.nack(message, delay_ms=0)
                say("nack", message)
            else:
                consumer.ack(message)
                say("ack", message)
"""


@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=pytest.mark.storm)])
def test_what_was_acknowledged_does_not_come_again(store_path, rounds, rng):
    acknowledged, unsure, put = set(), set(), 0
    for _ in range(rounds):
        last = rng.randrange(3, 90)
        in_hand = None
        with Program("-c", PROGRAM, store_path, put) as child:
            assert child.line() == "put"
            put += 50
            for number, line in enumerate(child.lines()):
                word, body = line.split()
                assert body not in acknowledged
                if word == "ack":
                    acknowledged.add(body)
                in_hand = body if word == "got" else None
                if number == last:
                    child.kill()
        # killed behind the acknowledgement, before it was told
        unsure |= {in_hand} - {None}
    with rmqcore.open_store(store_path) as store:
        found = {m.body.decode() for m in store.lease("g", {"T": "*"}, max_messages=1 << 20)}
    assert not found & acknowledged
    assert found | acknowledged | unsure == {str(number) for number in range(put)}
