"""`WireMessage`: a message as a client sends it, handed through from the network to the log."""

from libc.stdint cimport int32_t, int64_t


cdef class WireMessage:
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
        self, str topic not None, int32_t queue_id, body, properties, int32_t flag,
        int32_t sys_flag, int64_t born_timestamp_ms, str born_host not None,
        int32_t reconsume_times,
    ):
        self.topic = topic
        self.body = body
        self.properties = properties
        self.born_host = born_host
        self.fields.queue_id = queue_id
        self.fields.flag = flag
        self.fields.sys_flag = sys_flag
        self.fields.born_timestamp = born_timestamp_ms
        self.fields.reconsume_times = reconsume_times
        self.fields.prepared_transaction_offset = 0

    @property
    def queue_id(self) -> int:
        return self.fields.queue_id

    @property
    def flag(self) -> int:
        return self.fields.flag

    @property
    def sys_flag(self) -> int:
        return self.fields.sys_flag

    @property
    def born_timestamp_ms(self) -> int:
        return self.fields.born_timestamp

    @property
    def reconsume_times(self) -> int:
        return self.fields.reconsume_times

    def __iter__(self):
        return iter((
            self.topic, self.fields.queue_id, self.body, self.properties, self.fields.flag,
            self.fields.sys_flag, self.fields.born_timestamp, self.born_host,
            self.fields.reconsume_times,
        ))
