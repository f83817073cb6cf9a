"""A key query over mapped files: hash, chains, records and their real keys in one native call.

Answers the plain case only: every index file and every log file concerned is mapped, and no more
is found than was asked for. Everything else is answered with None, and Python goes the general
way.

Floor: F1; imports _hold, _log_map and _message.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
cimport cython

from rmqcore._bytes cimport load_i32, load_i64
from rmqcore._chain cimport Geometry, Source, Walk, walk
from rmqcore._hold cimport BufferHold
from rmqcore._layout cimport *
from rmqcore._log_map cimport LogMap
from rmqcore._message cimport MessageExt, find_in_hold
from rmqcore._record cimport bytes_t, index_hash_of, java_hash_step

cdef enum:
    CANDIDATES_MAX = 64


@cython.final
cdef class MappedIndex:
    """The held bytes of one index file and their geometry."""

    cdef BufferHold hold
    cdef Geometry shape

    def __init__(self, buffer, path, int32_t slot_count, int32_t entry_count):
        self.hold = BufferHold(buffer, path)
        self.shape.slot_count = slot_count
        self.shape.entry_count = entry_count


def find_by_key(
    list files not None, LogMap log not None, str topic not None, str key not None,
    int64_t min_offset, int64_t begin_ms, int64_t end_ms, int64_t slack_ms,
    Py_ssize_t max_messages,
):
    """Messages of a topic that carry a key, ascending by physical offset.

    Args:
        files: `MappedIndex` objects, oldest first.
        log: the mapped log.
        min_offset: the log's; what lies before it is gone.
        begin_ms, end_ms: store times wanted, both included.
        slack_ms: how far the times of an index file may be off.

    Returns:
        list of MessageExt; None when the general way has to be taken.

    Raises:
        CorruptRecordError: a candidate's bytes contradict each other.
    """
    cdef bytes text = f"{topic}#{key}".encode("utf-8", "replace")
    cdef int32_t key_hash = index_hash_of(
        java_hash_step(0, <bytes_t>PyBytes_AS_STRING(text), <int32_t>PyBytes_GET_SIZE(text))
    )
    cdef int64_t candidates[CANDIDATES_MAX]
    cdef int64_t count, index, last = -1, readable
    cdef Py_ssize_t number
    cdef MappedIndex file
    cdef Source source
    cdef Walk report
    cdef bytes_t base, at
    cdef BufferHold hold
    cdef MessageExt message
    found = []
    for number in range(len(files) - 1, -1, -1):
        file = files[number]
        base = <bytes_t>file.hold.view.buf
        if load_i32(base + INDEX_COUNT_AT) <= 1 or (
            load_i64(base + INDEX_BEGIN_TIMESTAMP_AT) - slack_ms > end_ms
            or load_i64(base + INDEX_END_TIMESTAMP_AT) + slack_ms < begin_ms
        ):
            continue
        source.base = base
        source.size = file.hold.view.len
        source.fd = -1
        report.steps = report.matches = 0
        report.broken = False
        count = walk(
            &source, &file.shape, key_hash, begin_ms, end_ms, candidates, CANDIDATES_MAX, &report
        )
        if report.broken or count == CANDIDATES_MAX:
            return None
        for index in range(count):
            if candidates[index] == last or candidates[index] < min_offset:
                continue
            last = candidates[index]
            hold = log.find(last, &at, &readable)
            if hold is None:
                return None
            answer = find_in_hold(hold, at, readable) if readable >= BORN_TIMESTAMP_AT else None
            if type(answer) is not MessageExt:
                continue
            message = answer
            if not begin_ms <= message.head.store_timestamp <= end_ms:
                continue
            if not message.has_key(topic, key):
                continue
            found.append(message)
            if len(found) > max_messages:
                return None
    found.reverse()
    return found
