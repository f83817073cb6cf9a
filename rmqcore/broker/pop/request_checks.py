"""Which POPs, peeks and notifications are refused, and why.

Source: RocketMQ broker/processor/PopMessageProcessor.java, processRequest; PeekMessageProcessor,
NotificationProcessor and PollingInfoProcessor refuse the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqcore.broker.pop.receipts import COUNT_MAX, retry_topic_of
from rmqcore.files.config_tables import DERIVED_TOPIC_NAME_MAX
from rmqcore.remoting import RequestRefusedError, ResponseCode
from rmqcore.remoting.codes import PERM_READ

if TYPE_CHECKING:
    from rmqcore.broker.pop.request import PopRequest
    from rmqcore.broker.state.broker_state import BrokerState


def check_request(state: BrokerState, wanted: PopRequest) -> None:
    """Refuse what may not be popped, by this group or by anybody.

    Args:
        state: the broker's.
        wanted: the request.

    Raises:
        RequestRefusedError: with the code and the remark of the answer.
    """
    config, topics, groups = state.config(), state.topics, state.groups
    _check_readable(config.broker_permission, f"the broker[{config.broker_ip1}]")
    if wanted.count > COUNT_MAX:
        remark = f"the pop message's num is greater than {COUNT_MAX}"
        raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
    if not config.timer_wheel_enable:
        remark = "pop message is forbidden because timerWheelEnable is false"
        raise RequestRefusedError(ResponseCode.SYSTEM_ERROR, remark)
    topic = topics.expect(wanted.topic)
    _check_readable(topic.perm, f"the topic[{wanted.topic}]")
    if wanted.queue_id >= topic.read_queue_nums:
        remark = (
            f"queueId[{wanted.queue_id}] is illegal, topic:[{wanted.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}]"
        )
        raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
    group = groups.expect_for_client(wanted.group)
    if not group.get("consumeEnable", True):
        remark = f"subscription group no permission, {wanted.group}"
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)
    groups.expect_readable(wanted.group, wanted.topic)
    state.offsets.expect_room(wanted.topic, wanted.group, max(0, wanted.queue_id))
    retry_topic = retry_topic_of(wanted.group, wanted.topic)
    topics.expect_room(retry_topic)
    if len(retry_topic) > DERIVED_TOPIC_NAME_MAX:
        remark = f"group and topic are too long together: nothing of {wanted.topic} comes again"
        raise RequestRefusedError(ResponseCode.INVALID_PARAMETER, remark)
    wanted.subscription.check_allowed(config)


def _check_readable(permission: int, what: str) -> None:
    if not permission & PERM_READ:
        remark = f"{what} pop message is forbidden"
        raise RequestRefusedError(ResponseCode.NO_PERMISSION, remark)
