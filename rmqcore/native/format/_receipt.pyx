"""`PutMessageResult`: the receipt of a put."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
cimport cython

from rmqcore.native.format._bytes cimport store_i64

from rmqcore.status import PutMessageStatus

cdef extern from "Python.h":
    str PyUnicode_New(Py_ssize_t size, Py_UCS4 most)
    void* PyUnicode_DATA(object text)

cdef object PUT_OK = PutMessageStatus.PUT_OK
cdef tuple NAMES = (
    "status", "phy_offset", "queue_offset", "store_size", "message_id", "durability",
    "store_timestamp_ms", "message_count", "reason",
)
cdef tuple DERIVED = ("message_id",)
cdef enum:
    COMMA = 44
cdef const char* HEX = "0123456789ABCDEF"


cdef uint8_t* add_hex(uint8_t* to, const uint8_t* at, Py_ssize_t size) noexcept nogil:
    """Write bytes as hexadecimal digits; where they end."""
    cdef Py_ssize_t k
    for k in range(size):
        to[2 * k] = HEX[at[k] >> 4]
        to[2 * k + 1] = HEX[at[k] & 15]
    return to + 2 * size


@cython.final
@cython.no_gc
@cython.freelist(16)
cdef class PutMessageResult:
    """The receipt of a put.

    Attributes:
        status: `PutMessageStatus`.
        phy_offset: byte position of the (first) record in the commit log; -1 when none was stored.
        queue_offset: number of the (first) message in its queue; -1 when none was stored.
        store_size: bytes stored.
        store_timestamp_ms: the time in the record.
        message_count: records stored.
        durability: `Durability` that was reached when the put returned.
        reason: why it failed; empty when it did not.

    Source: RocketMQ store/PutMessageResult.java and AppendMessageResult.java.
    """

    def __init__(
        self, status, *, int64_t phy_offset=-1, int64_t queue_offset=-1, int64_t store_size=0,
        int64_t store_timestamp_ms=0, int32_t message_count=0, durability=None, str reason="",
        bytes store_host=None, phy_offsets=None,
    ):
        self.status = status
        self.phy_offset = phy_offset
        self.queue_offset = queue_offset
        self.store_size = store_size
        self.store_timestamp_ms = store_timestamp_ms
        self.message_count = message_count
        self.durability = durability
        self.reason = reason
        self.store_host = store_host
        self.phy_offsets = phy_offsets

    @property
    def ok(self) -> bool:
        """True when the message is stored as durably as was asked for."""
        return self.status is PUT_OK

    @property
    def message_id(self):
        """The offset id; of a batch all of them, joined by commas; None when nothing was stored."""
        cdef Py_ssize_t host_size, count
        cdef int64_t phy_offset
        cdef uint8_t number[8]
        cdef uint8_t* to
        cdef tuple offsets = (self.phy_offset,)
        if self.phy_offset < 0 or self.store_host is None:
            return None
        if self.phy_offsets is not None:
            # counted when they have been read: what is iterated may be anything
            offsets = tuple(self.phy_offsets)
            if not offsets:
                return None
        host_size, count = PyBytes_GET_SIZE(self.store_host), len(offsets)
        text = PyUnicode_New(count * (2 * (host_size + 8) + 1) - 1, 127)
        to = <uint8_t*>PyUnicode_DATA(text)
        for phy_offset in offsets:
            count -= 1
            store_i64(number, phy_offset)
            to = add_hex(to, <const uint8_t*>PyBytes_AS_STRING(self.store_host), host_size)
            to = add_hex(to, number, 8)
            if count:
                to[0] = COMMA
                to += 1
        return text

    def with_flush(self, status, durability, str reason=""):
        """A copy of this receipt after its flush has ended.

        Args:
            status: how the wait for disk or slaves has ended.
            durability: what was reached.
            reason: why it is not what was asked for; empty when it is.
        """
        cdef PutMessageResult copy = PutMessageResult.__new__(PutMessageResult)
        copy.status = status
        copy.durability = durability
        copy.phy_offset = self.phy_offset
        copy.queue_offset = self.queue_offset
        copy.store_size = self.store_size
        copy.store_timestamp_ms = self.store_timestamp_ms
        copy.message_count = self.message_count
        copy.reason = reason
        copy.store_host = self.store_host
        copy.phy_offsets = self.phy_offsets
        return copy

    def to_dict(self) -> dict:
        """Every attribute by its name."""
        return {name: getattr(self, name) for name in NAMES}

    def __eq__(self, other):
        if not isinstance(other, PutMessageResult):
            return NotImplemented
        return self.to_dict() == (<PutMessageResult>other).to_dict()

    def __hash__(self):
        return hash((self.status, self.phy_offset, self.store_timestamp_ms))

    def __reduce__(self):
        values = {name: getattr(self, name) for name in NAMES if name not in DERIVED}
        values["store_host"] = self.store_host
        if self.phy_offsets is not None:
            values["phy_offsets"] = [int(offset) for offset in self.phy_offsets]
        return _receipt_again, (values,)

    def __repr__(self):
        why = f", reason={self.reason!r}" if self.reason else ""
        return (
            f"PutMessageResult({self.status.name}, phy_offset={self.phy_offset}, "
            f"queue_offset={self.queue_offset}, store_size={self.store_size}, "
            f"durability={self.durability and self.durability.value!r}{why})"
        )


def _receipt_again(values):
    return PutMessageResult(values.pop("status"), **values)
