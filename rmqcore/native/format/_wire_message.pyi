from collections.abc import Iterator

from typing_extensions import Buffer, disjoint_base

@disjoint_base
class WireMessage:
    """A message, or an encoded batch of one queue, as a client sends it.

    Its numbers stay those of C between the request that was read and the record that is written.

    Attributes:
        topic, queue_id: where it goes.
        body: as received.
        properties: as received: ``name U+0001 value U+0002``, again and again; malformed pairs are
            dropped. None for a batch, whose messages bring their own.
        flag, sys_flag: application flag; RocketMQ's system flags.
        born_timestamp_ms: Unix time of the producer.
        born_host: ``address:port`` of the producer.
        reconsume_times: how often it was delivered before.
    """

    def __init__(
        self,
        topic: str,
        queue_id: int,
        body: Buffer,
        properties: bytes | None,
        flag: int,
        sys_flag: int,
        born_timestamp_ms: int,
        born_host: str,
        reconsume_times: int,
    ) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def body(self) -> Buffer: ...
    @property
    def properties(self) -> bytes | None: ...
    @property
    def flag(self) -> int: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def born_timestamp_ms(self) -> int: ...
    @property
    def born_host(self) -> str: ...
    @property
    def reconsume_times(self) -> int: ...
    def __iter__(self) -> Iterator[object]: ...
