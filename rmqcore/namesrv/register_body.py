"""The body of a broker's registration, plain or compressed, of every release; hostile until read.

Source: RegisterBrokerBody, TopicConfig.
"""

from __future__ import annotations

import contextlib
import re
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from rmqcore.java.json import parse_java_json
from rmqcore.namesrv.route_data import BrokerTopics, QueueData, RegisteredTopic, TopicsVersion
from rmqcore.namesrv.route_table import MAPPING_SIZE_MAX, MAPPINGS_MAX, TOPICS_OF_BROKER
from rmqcore.remoting import RequestRefusedError, ResponseCode
from rmqcore.remoting.codes import VERSION_3_0_11, VERSION_5_0_0

#: A compressed body that unpacks to more bytes, some 500,000 topics, is refused.
PLAIN_SIZE_MAX = 64 * 1024 * 1024
_INT = struct.Struct(">i")
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_PERM_MAX = 15
_QUEUE_COUNT_DEFAULT = 16
_PERM_DEFAULT = 6
_ZLIB_FIRST_BYTE = 0x78
_TOPIC_ITEMS_MIN = 5
#: One piece of a compressed body has at most this many bytes: a topic, a mapping, a version.
_PIECE_SIZE_MAX = 4 * MAPPING_SIZE_MAX
#: The name of a filter server has at most this many characters.
_TEXT_SIZE_MAX = 255
_NUMBER = re.compile(r"[0-9]{1,10}")


def read_register_body(body: bytes, version: int, *, compressed: bool) -> BrokerTopics:
    """Read the topics of a registration.

    Args:
        body: as it was received; empty is no topics.
        version: MQVersion ordinal of the broker.
        compressed: what the header says. Brokers of 5.x compress and say that they did not, so the
            body is looked at, too.

    Raises:
        RequestRefusedError: the body is not what a broker sends.
    """
    if not body:
        return BrokerTopics()
    if _is_compressed(body, compressed):
        return _read_compressed(body, version)
    members = parse_object(body)
    if version < VERSION_3_0_11:
        return _read_wrapper(members, ())
    filters = _texts(members.get("filterServerList"))
    return _read_wrapper(_object(members.get("topicConfigSerializeWrapper")), filters)


def is_larger(body: bytes, size: int, *, compressed: bool) -> bool:
    """Tell whether a registration, unpacked, has more bytes than that.

    Args:
        body: as it was received.
        size: bytes; as many are unpacked at most.
        compressed: what the header says.
    """
    if not body or len(body) > size or not _is_compressed(body, compressed):
        return len(body) > size
    with contextlib.suppress(zlib.error):
        return len(zlib.decompressobj().decompress(body, size + 1)) > size
    return False


def _is_compressed(body: bytes, said: bool) -> bool:
    return said or body[0] == _ZLIB_FIRST_BYTE


def parse_object(body: bytes) -> dict[str, Any]:
    """Read a JSON object, standard or fastjson's.

    Raises:
        RequestRefusedError: it is none.
    """
    try:
        value = parse_java_json(body.decode("utf-8"))
    except ValueError:
        raise _refused("it is not JSON") from None
    return _object(value)


def read_data_version(members: Mapping[str, Any]) -> TopicsVersion:
    """Read a TopicsVersion; members that an older release leaves out are 0.

    Raises:
        RequestRefusedError: a member is no number of 64 bits.
    """
    return TopicsVersion(
        _number(members, "counter", 0, _INT64_MAX),
        _number(members, "stateVersion", 0, _INT64_MAX),
        _number(members, "timestamp", 0, _INT64_MAX),
    )


def read_queue_data(members: Any) -> QueueData:
    """Read one of the queueDatas of a route.

    Raises:
        RequestRefusedError: it is none.
    """
    members = _object(members)
    topic = _read_topic(members)
    return topic.queues_of(_text(members.get("brokerName")), topic.perm)


def _read_wrapper(wrapper: dict[str, Any], filters: tuple[str, ...]) -> BrokerTopics:
    table = _object(wrapper.get("topicConfigTable"))
    mappings = _object(wrapper.get("topicQueueMappingInfoMap"))
    return BrokerTopics(
        read_data_version(_object(wrapper.get("dataVersion"))),
        {_text(name): _read_topic(_object(members)) for name, members in table.items()},
        filters,
        {_text(name): _mapping(info) for name, info in mappings.items()},
    )


def _read_topic(members: dict[str, Any]) -> RegisteredTopic:
    return RegisteredTopic(
        _number(members, "readQueueNums", _QUEUE_COUNT_DEFAULT, _INT32_MAX),
        _number(members, "writeQueueNums", _QUEUE_COUNT_DEFAULT, _INT32_MAX),
        _number(members, "perm", _PERM_DEFAULT, _PERM_MAX),
        _number(members, "topicSysFlag", 0, _INT32_MAX),
    )


# ---- compressed bodies ------------------------------------------------------------------------


def _read_compressed(body: bytes, version: int) -> BrokerTopics:
    pieces = _Pieces(_unpack(body))
    data_version = read_data_version(parse_object(pieces.next_piece()))
    count = pieces.count("topics of a broker", TOPICS_OF_BROKER)
    topics = dict(_read_topic_line(pieces.next_piece()) for _ in range(count))
    filters = _texts(_list(pieces.next_piece()))
    mappings = {}
    if version >= VERSION_5_0_0:
        for _ in range(pieces.count("static topics", MAPPINGS_MAX)):
            info = _mapping(parse_object(pieces.next_piece()))
            mappings[_text(info.get("topic"))] = info
    return BrokerTopics(data_version, topics, filters, mappings)


def _unpack(body: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(body, PLAIN_SIZE_MAX)
    except zlib.error:
        raise _refused("it cannot be unpacked") from None
    if not unpacker.eof:
        raise _refused("it is cut, or too large")
    return plain


class _Pieces:
    """Pieces with their length in front, each checked against what is left."""

    def __init__(self, plain: bytes) -> None:
        self._plain = plain
        self._at = 0

    def count(self, what: str, most: int) -> int:
        """Read how many pieces follow; each takes four bytes at least.

        Args:
            what: they are.
            most: how many there may be.
        """
        count = self._int()
        if count > most:
            raise _refused(f"it has {count} {what}, {most} at most")
        if not 0 <= count <= (len(self._plain) - self._at) // _INT.size:
            raise _refused(f"{count} pieces cannot be in it")
        return count

    def next_piece(self) -> bytes:
        """Read one piece."""
        size = self._int()
        if size > _PIECE_SIZE_MAX:
            raise _refused(f"a piece of {size} bytes, {_PIECE_SIZE_MAX} at most")
        if not 0 <= size <= len(self._plain) - self._at:
            raise _refused(f"a piece of {size} bytes cannot be in it")
        self._at += size
        return self._plain[self._at - size : self._at]

    def _int(self) -> int:
        if len(self._plain) - self._at < _INT.size:
            raise _refused("it ends too early")
        value: int = _INT.unpack_from(self._plain, self._at)[0]
        self._at += _INT.size
        return value


def _read_topic_line(line: bytes) -> tuple[str, RegisteredTopic]:
    """Read `name readQueueNums writeQueueNums perm filterType [attributes]`."""
    items = line.decode("utf-8", "replace").split(" ", _TOPIC_ITEMS_MIN)
    if len(items) < _TOPIC_ITEMS_MIN or not all(map(_NUMBER.fullmatch, items[1:4])):
        raise _refused("a topic in it cannot be read")
    numbers = [int(item) for item in items[1:4]]
    names = ("readQueueNums", "writeQueueNums", "perm")
    return _text(items[0]), _read_topic(dict(zip(names, numbers, strict=True)))


# ---- values of JSON ---------------------------------------------------------------------------


def _number(members: Mapping[str, Any], name: str, default: int, most: int) -> int:
    value = members.get(name, default)
    if type(value) is not int or not 0 <= value <= most:
        raise _refused(f"{name} has to be a number from 0 to {most}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _refused("a name in it is missing")
    return value


def _object(value: Any) -> dict[str, Any]:
    """An object; an empty one for null, as a member that is missing is."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _refused("it is no JSON object where one has to be")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    """The mapping of a static topic.

    Raises:
        RequestRefusedError: it is none, or holds more than `MAPPING_SIZE_MAX` characters and
            values.
    """
    info, left = _object(value), MAPPING_SIZE_MAX
    stack: list[Any] = [info]
    while stack:
        each = stack.pop()
        left -= 1 + (len(each) if isinstance(each, (str, list, dict)) else 0)
        if left < 0:
            raise _refused(f"a static topic has more than {MAPPING_SIZE_MAX} bytes")
        if isinstance(each, dict):
            stack += each
            stack += each.values()
        elif isinstance(each, list):
            stack += each
    return info


def _list(piece: bytes) -> Any:
    try:
        return parse_java_json(piece.decode("utf-8")) if piece else []
    except ValueError:
        raise _refused("it is not JSON") from None


def _texts(values: Any) -> tuple[str, ...]:
    if values is None:
        return ()
    if not isinstance(values, list) or not all(
        isinstance(value, str) and len(value) <= _TEXT_SIZE_MAX for value in values
    ):
        raise _refused("its list of filter servers is none")
    return tuple(values)


def _refused(reason: str) -> RequestRefusedError:
    return RequestRefusedError(ResponseCode.SYSTEM_ERROR, f"the body is refused: {reason}")
