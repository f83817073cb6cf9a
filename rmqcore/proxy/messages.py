"""The messages of `apache.rocketmq.v2`, in a descriptor pool of their own.

RocketMQ's Python client brings the same messages in protobuf's default pool, which knows each name
once; in this private one both live in one process. `rocketmq_v2.binpb` is what protoc makes of the
published definitions (`--include_imports --descriptor_set_out`), which are Apache RocketMQ's under
the Apache License, Version 2.0.

Source: https://github.com/apache/rocketmq-apis/tree/main/apache/rocketmq/v2
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

#: classes are made at run time, so nothing is known of their fields here
V2Class = Any
#: one message of `apache.rocketmq.v2`
V2Message = Any

PACKAGE: Final = "apache.rocketmq.v2"
SERVICE: Final = f"{PACKAGE}.MessagingService"


def _load() -> tuple[descriptor_pool.DescriptorPool, dict[str, V2Class]]:
    listed = descriptor_pb2.FileDescriptorSet()
    listed.ParseFromString(Path(__file__).with_name("rocketmq_v2.binpb").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in listed.file:
        pool.Add(file)
    names = [file.name for file in listed.file if file.package == PACKAGE]
    classes = message_factory.GetMessageClassesForFiles(names, pool)
    return pool, {name.removeprefix(f"{PACKAGE}."): made for name, made in classes.items()}


POOL, _CLASSES = _load()


def v2_class(name: str) -> V2Class:
    """The class of a message of the package, by its name there.

    Raises:
        KeyError: there is none.
    """
    return _CLASSES[name]


Assignment: V2Class = v2_class("Assignment")
Message: V2Class = v2_class("Message")
MessageQueue: V2Class = v2_class("MessageQueue")
Resource: V2Class = v2_class("Resource")
Settings: V2Class = v2_class("Settings")
Status: V2Class = v2_class("Status")
TelemetryCommand: V2Class = v2_class("TelemetryCommand")


class MessageType(IntEnum):
    """What kind of message it is; of a topic, what it takes."""

    MESSAGE_TYPE_UNSPECIFIED = 0
    NORMAL = 1
    FIFO = 2
    DELAY = 3
    TRANSACTION = 4
    LITE = 5
    PRIORITY = 6


class Permission(IntEnum):
    """What may be done with a queue."""

    PERMISSION_UNSPECIFIED = 0
    NONE = 1
    READ = 2
    WRITE = 3
    READ_WRITE = 4


class ClientType(IntEnum):
    """What a client is."""

    CLIENT_TYPE_UNSPECIFIED = 0
    PRODUCER = 1
    PUSH_CONSUMER = 2
    SIMPLE_CONSUMER = 3
    PULL_CONSUMER = 4
    LITE_PUSH_CONSUMER = 5
    LITE_SIMPLE_CONSUMER = 6


class FilterType(IntEnum):
    """How an expression chooses messages."""

    FILTER_TYPE_UNSPECIFIED = 0
    TAG = 1
    SQL = 2


class Encoding(IntEnum):
    """How a body is encoded."""

    ENCODING_UNSPECIFIED = 0
    IDENTITY = 1
    GZIP = 2


class DigestType(IntEnum):
    """How a body's digest is made."""

    DIGEST_TYPE_UNSPECIFIED = 0
    CRC32 = 1
    MD5 = 2
    SHA1 = 3


class TransactionResolution(IntEnum):
    """How a transaction ends."""

    TRANSACTION_RESOLUTION_UNSPECIFIED = 0
    COMMIT = 1
    ROLLBACK = 2


class TransactionSource(IntEnum):
    """Why a transaction ends now."""

    SOURCE_UNSPECIFIED = 0
    SOURCE_CLIENT = 1
    SOURCE_SERVER_CHECK = 2


class QueryOffsetPolicy(IntEnum):
    """Which offset is asked for."""

    BEGINNING = 0
    END = 1
    TIMESTAMP = 2


class AddressScheme(IntEnum):
    """What an address is."""

    ADDRESS_SCHEME_UNSPECIFIED = 0
    IPv4 = 1
    IPv6 = 2
    DOMAIN_NAME = 3
