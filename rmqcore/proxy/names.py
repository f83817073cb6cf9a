"""Topics and groups as clients name them: a name in a namespace, `namespace%name` for brokers.

Source: RocketMQ proxy/grpc/v2/common/GrpcValidator.java; NamespaceUtil.
"""

from __future__ import annotations

import re
from typing import Final

from rmqcore.proxy.codes import Code, RefusedError
from rmqcore.proxy.messages import Resource, V2Message

#: A topic's name has at most this many characters, and a group's as many as its retry topic
#: leaves.
TOPIC_MAX: Final = 127
GROUP_MAX: Final = 120
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_BETWEEN: Final = "%"


def topic_name(resource: V2Message) -> str:
    """The broker's name of a topic.

    Raises:
        RefusedError: it is none.
    """
    name = _full_name(resource)
    if len(name) > TOPIC_MAX or not _NAME.fullmatch(name):
        rule = f"1 to {TOPIC_MAX} letters, digits, %, |, _ and -"
        raise RefusedError(Code.ILLEGAL_TOPIC, f"topic {name[:TOPIC_MAX]!r}: {rule}")
    return name


def group_name(resource: V2Message) -> str:
    """The broker's name of a consumer group.

    Raises:
        RefusedError: it is none.
    """
    name = _full_name(resource)
    if len(name) > GROUP_MAX or not _NAME.fullmatch(name):
        rule = f"1 to {GROUP_MAX} letters, digits, %, |, _ and -"
        raise RefusedError(Code.ILLEGAL_CONSUMER_GROUP, f"group {name[:GROUP_MAX]!r}: {rule}")
    return name


def copied_name(resource: V2Message) -> V2Message:
    """A name as a client has given it, and nothing else of its request: to be kept."""
    return Resource(resource_namespace=resource.resource_namespace, name=resource.name)


def _full_name(resource: V2Message) -> str:
    namespace, name = resource.resource_namespace, resource.name
    return f"{namespace}{_BETWEEN}{name}" if namespace and name else str(name)
