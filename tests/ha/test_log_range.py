"""What a master says of its log, and what a slave makes of an answer that is none."""

import json

import pytest

from rmqcore.broker.replication.slave_synchronize import SlaveSynchronize
from rmqcore.broker.state.resets import Resets
from rmqcore.files.config_tables import TopicConfigTable
from rmqcore.files.consumer_offset_table import ConsumerOffsetTable
from rmqcore.files.group_table import SubscriptionGroupTable
from rmqcore.files.request_mode_table import MessageRequestModeTable
from rmqcore.remoting import success
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.logic


def asked(folder, body):
    """What a slave takes from this answer to request 28."""

    class Client:
        async def invoke(self, *_):
            return success(body=body)

    kinds = (
        TopicConfigTable,
        ConsumerOffsetTable,
        SubscriptionGroupTable,
        MessageRequestModeTable,
    )
    tables = [kind(folder, clock=wall_clock_ms) for kind in kinds]
    slave = SlaveSynchronize(
        Client(),
        lambda: "127.0.0.1:1",
        *tables,
        folder,
        log_end=lambda: 0,
        flush=lambda: None,
        topics_changed=lambda: None,
        agrees=lambda: True,
        witness=lambda: None,
        queue_end=lambda _, __: 1000,
        follow_deletion=lambda _, __: True,
        has_messages=lambda _, __: True,
        resets=Resets(folder),
        clock_ms=wall_clock_ms,
    )
    # nothing is waited for
    with pytest.raises(StopIteration) as ended:
        slave.log_range().send(None)
    return ended.value.value


def told(least, most):
    return json.dumps({"table": {"commitLogMinOffset": least, "commitLogMaxOffset": most}}).encode()


@pytest.mark.parametrize(("least", "most"), [("0", "4096"), ("-1", "0"), (4096, 9000)])
def test_a_log_has_two_ends(tmp_path, least, most):
    assert asked(tmp_path, told(least, most)) == (int(least), int(most))


@pytest.mark.parametrize(
    "body",
    [
        told(None, "1"),
        told([], "1"),
        told("1", "x"),
        told("-2", "1"),
        told("5", "4"),
        told("0", str(1 << 70)),
        b"[]",
        b"\xff",
        b'{"table":1}',
    ],
)
def test_what_no_log_has_is_as_if_nothing_was_said(tmp_path, body):
    assert asked(tmp_path, body) is None
