"""Key queries: their result, the rules of what is a hit, and the fast path.

The two rules, which index files to ask and what counts as a hit, hold for the fast path and for the
general path. The fast path serves queries whose index files and log files are mapped, and that find
no more than was asked for. For everything else it answers None, and the general path is taken.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t
cimport cython

from rmqcore.native.format._bytes cimport load_i32, load_i64
from rmqcore.native.format._chain cimport Source, Walk, walk
from rmqcore.native.base._hold cimport BufferHold
from rmqcore.native.format._layout cimport *
from rmqcore.native.read._log_map cimport LogMap
from rmqcore.native.format._message_ext cimport MessageExt
from rmqcore.native.format._record cimport (
    bytes_t, check_body_crc, index_hash_of, java_hash_step, rmq_crc32_init,
)

from rmqcore.native.format._message_ext import status_text
from rmqcore.native.read.result_html import table_of
from rmqcore.errors import CorruptRecordError

rmq_crc32_init()

cdef enum:
    CANDIDATES_MAX = 64
    # a longer chain is walked where others may run meanwhile
    STEPS_MAX = 1 << 16
    # between two records of a store the clock may have stepped back by this much
    CLOCK_SLACK_MS = 10_000


cdef inline bint may_hold(
    int64_t index_count, int64_t file_begin_ms, int64_t file_end_ms, int64_t begin_ms,
    int64_t end_ms,
) noexcept nogil:
    if file_end_ms < file_begin_ms:
        # the clock was set back in between: its times say nothing
        return index_count > 1
    return (
        index_count > 1
        and (end_ms > INT64_MAX - CLOCK_SLACK_MS or file_begin_ms <= end_ms + CLOCK_SLACK_MS)
        and (begin_ms < INT64_MIN + CLOCK_SLACK_MS or file_end_ms >= begin_ms - CLOCK_SLACK_MS)
    )


def may_hold_hits(
    int64_t index_count, int64_t file_begin_ms, int64_t file_end_ms, int64_t begin_ms,
    int64_t end_ms,
) -> bool:
    """Whether an index file has to be asked: the first rule of a key query.

    Args:
        index_count, file_begin_ms, file_end_ms: of the file's header; its times may be off by as
            much as the clock may have stepped back, 10 s.
        begin_ms, end_ms: store times wanted, both included.
    """
    return may_hold(index_count, file_begin_ms, file_end_ms, begin_ms, end_ms)


cdef inline bint hits(
    MessageExt message, bytes_t topic, Py_ssize_t topic_size, bytes_t key, Py_ssize_t key_size,
    int64_t begin_ms, int64_t end_ms,
) noexcept:
    return (
        begin_ms <= message.head.store_timestamp <= end_ms
        and message.is_of(topic, <int32_t>topic_size)
        and message.has_word(key, <int32_t>key_size)
    )


def is_hit(
    MessageExt message not None, str topic not None, str key not None, int64_t begin_ms,
    int64_t end_ms,
) -> bool:
    """Whether a candidate counts: the second rule of a key query.

    Args:
        message: a record that an entry with the key's hash leads to.
        topic, key: what to look for; the record's own topic, keys and UNIQ_KEY are compared.
        begin_ms, end_ms: store times wanted, both included.
    """
    cdef bytes topic_text = topic.encode("utf-8", "replace")
    cdef bytes key_text = key.encode("utf-8", "replace")
    return hits(
        message, <bytes_t>PyBytes_AS_STRING(topic_text), PyBytes_GET_SIZE(topic_text),
        <bytes_t>PyBytes_AS_STRING(key_text), PyBytes_GET_SIZE(key_text), begin_ms, end_ms,
    )


@cython.final
cdef class QueryMessageResult:
    """What a key query found.

    Attributes:
        messages: true hits, ascending by physical offset, each once.
        buffer_total_size: bytes of their records.
        next_page: pass it as ``page`` for older hits; None when there are none.
        explanation: filled when it was asked for.

    Source: RocketMQ store/QueryMessageResult.java.
    """

    def __init__(self, list messages not None, next_page=None, explanation=None):
        cdef MessageExt message
        self.found = messages
        self.checked = True
        self.next_page = next_page
        self.explanation = explanation
        for message in messages:
            self.buffer_total_size += message.head.total_size

    @property
    def messages(self) -> list:
        """The messages; CorruptRecordError where a body contradicts its CRC."""
        cdef MessageExt message
        if not self.checked:
            for message in self.found:
                status = check_body_crc(message.record_at, &message.head)
                if status != OK:
                    raise CorruptRecordError(
                        message.hold.path or "log", message.head.phy_offset, status_text(status)
                    )
            self.checked = True
        return self.found

    def __len__(self):
        return len(self.found)

    def __iter__(self):
        return iter(self.messages)

    def _repr_html_(self) -> str:
        return table_of("QueryMessageResult", self.messages)

    def __repr__(self):
        return f"QueryMessageResult({len(self.found)} messages, next_page={self.next_page})"


@cython.final
cdef class MappedIndex:
    """The held bytes of one index file and their geometry."""

    def __init__(self, buffer, path, int32_t slot_count, int32_t entry_count):
        self.hold = BufferHold(buffer, path)
        self.shape.slot_count = slot_count
        self.shape.entry_count = entry_count


cdef int32_t hash_of(
    bytes_t topic, Py_ssize_t topic_size, bytes_t key, Py_ssize_t key_size
) noexcept nogil:
    """As `_index.index_hash` of ``topic#key``."""
    cdef int32_t hash = java_hash_step(0, topic, <int32_t>topic_size)
    hash = java_hash_step(hash, <bytes_t><const char*>b"#", 1)
    return index_hash_of(java_hash_step(hash, key, <int32_t>key_size))


cdef QueryMessageResult find_by_key(
    list files, LogMap log, int64_t min_offset, str topic, str key, int64_t begin_ms,
    int64_t end_ms, Py_ssize_t max_messages,
):
    """Messages of a topic that carry a key.

    Args:
        files: `MappedIndex` objects, oldest first.
        log: the mapped log.
        min_offset: of its first byte; what lies before is gone.
        topic: ASCII.
        begin_ms, end_ms: store times wanted, both included.

    Returns:
        None when the general path has to be taken.

    Raises:
        CorruptRecordError: the parts of a candidate contradict its size.
        UnicodeEncodeError: the key is no Unicode text.
    """
    cdef Py_ssize_t topic_size, key_size, number
    cdef bytes_t topic_at = <bytes_t>PyUnicode_AsUTF8AndSize(topic, &topic_size)
    cdef bytes_t key_at = <bytes_t>PyUnicode_AsUTF8AndSize(key, &key_size)
    cdef int32_t key_hash = hash_of(topic_at, topic_size, key_at, key_size)
    cdef int64_t candidates[CANDIDATES_MAX]
    cdef int64_t count, index, last = -1
    cdef MappedIndex file
    cdef Source source
    cdef Walk report
    cdef bytes_t base
    cdef MessageExt message
    cdef QueryMessageResult result = QueryMessageResult.__new__(QueryMessageResult)
    cdef list found = []
    for number in range(len(files) - 1, -1, -1):
        file = <MappedIndex>files[number]
        base = <bytes_t>file.hold.view.buf
        if not may_hold(
            load_i32(base + INDEX_COUNT_AT), load_i64(base + INDEX_BEGIN_TIMESTAMP_AT),
            load_i64(base + INDEX_END_TIMESTAMP_AT), begin_ms, end_ms,
        ):
            continue
        source.base = base
        source.size = file.hold.view.len
        source.fd = -1
        report.steps = report.matches = 0
        report.broken = False
        count = walk(
            &source, &file.shape, key_hash, begin_ms, end_ms, candidates, CANDIDATES_MAX,
            STEPS_MAX, &report,
        )
        if report.broken or count == CANDIDATES_MAX or report.steps == STEPS_MAX:
            return None
        for index in range(count):
            if candidates[index] == last or candidates[index] < min_offset:
                continue
            if last >= 0 and candidates[index] > last:
                # a part of the log was indexed twice: the general path finds each message once
                return None
            last = candidates[index]
            answer = log.look_at(last, False)
            if answer is False:
                return None
            if type(answer) is not MessageExt:
                continue
            message = <MessageExt>answer
            if not hits(message, topic_at, topic_size, key_at, key_size, begin_ms, end_ms):
                continue
            found.append(message)
            result.buffer_total_size += message.head.total_size
            if len(found) > max_messages:
                return None
    if len(found) > 1:
        found.reverse()
    result.found = found
    return result
