"""Plain pulls, from what was received to the messages found, in one native call for all of them.

A plain pull is 11 or 361 whose fields are plain text and numbers from 0 on, and which finds
messages at once. Its records are copied behind its answer, so that one write sends all answers; an
answer that is too large for that is left to the processor, which sends slices of the log.
"""

from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t
from libc.string cimport memcmp, strlen

from rmqcore.broker._direct cimport SLOTS, DirectRequests, Header, Part, number_in
from rmqcore.native.read._get_result cimport GetMessageResult
from rmqcore.remoting._json_header cimport Out, add, add_number

from rmqcore.remoting import RequestCode, codes

cdef enum:
    GROUP
    TOPIC
    QUEUE_ID
    QUEUE_OFFSET
    COUNT
    FLAGS
    COMMIT_OFFSET
    SUSPEND_MS
    SUBSCRIPTION
    EXPRESSION_TYPE
    VERSION
    FIELDS
    HEADER_MOST = 512       # bytes of an answer's header and prefix

cdef int PULL = int(RequestCode.PULL_MESSAGE)
cdef int LITE_PULL = int(RequestCode.LITE_PULL_MESSAGE)

cdef const char* NAMES[FIELDS]
NAMES[GROUP] = b"consumerGroup"
NAMES[TOPIC] = b"topic"
NAMES[QUEUE_ID] = b"queueId"
NAMES[QUEUE_OFFSET] = b"queueOffset"
NAMES[COUNT] = b"maxMsgNums"
NAMES[FLAGS] = b"sysFlag"
NAMES[COMMIT_OFFSET] = b"commitOffset"
NAMES[SUSPEND_MS] = b"suspendTimeoutMillis"
NAMES[SUBSCRIPTION] = b"subscription"
NAMES[EXPRESSION_TYPE] = b"expressionType"
NAMES[VERSION] = b"subVersion"

cdef bytes ENDS = (
    b',"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":%d}' % codes.VERSION
)


cdef int name_slot(const Part* name) noexcept nogil:
    cdef int slot
    for slot in range(FIELDS):
        if <size_t>name.size == strlen(NAMES[slot]) and memcmp(
            name.at, NAMES[slot], name.size
        ) == 0:
            return slot
    return SLOTS


cdef int64_t number_or_0(const Part* part) noexcept nogil:
    return number_in(part, INT64_MAX) if part.size >= 0 else 0


cdef str text_in(const Part* part):
    if part.size < 0:
        return None
    return PyUnicode_DecodeASCII(<const char*>part.at, part.size, NULL)


cdef class DirectPulls(DirectRequests):
    """Answers the plain pulls of all connections, on the event loop.

    Args:
        find: called with the values of a pull's header: group, topic, queue id, queue offset,
            messages at most, flags, offset to commit, milliseconds to wait, subscription or None,
            its type or None, its version. Answers with the `GetMessageResult` of what was found;
            None for a pull that needs more looking at.
        size_most: bytes of records that a result has at most.
    """

    cdef object find
    cdef Py_ssize_t size_most

    def __init__(self, find, Py_ssize_t size_most):
        self.find = find
        self.size_most = size_most
        self.kind.codes = [PULL, LITE_PULL]
        self.kind.slot_of = name_slot
        self.kind.escaped = -1

    cdef bint answer_request(
        self, Header* header, const uint8_t* body, Py_ssize_t body_size
    ) except -1:
        """Answer what a header asks for."""
        cdef Part* fields = header.fields
        cdef int64_t queue_id = number_in(&fields[QUEUE_ID], INT32_MAX)
        cdef int64_t offset = number_in(&fields[QUEUE_OFFSET], INT64_MAX)
        cdef int64_t count = number_in(&fields[COUNT], INT64_MAX)
        cdef int64_t flags = number_in(&fields[FLAGS], INT64_MAX)
        cdef int64_t committed = number_or_0(&fields[COMMIT_OFFSET])
        cdef int64_t suspend_ms = number_or_0(&fields[SUSPEND_MS])
        cdef int64_t version = number_or_0(&fields[VERSION])
        cdef GetMessageResult result
        if fields[GROUP].size < 0 or fields[TOPIC].size < 0:
            return False
        if self.frame_most < self.size_most + HEADER_MOST:
            return False
        if min(queue_id, offset, count, flags, committed, suspend_ms, version) < 0:
            return False
        result = self.find(
            text_in(&fields[GROUP]),
            text_in(&fields[TOPIC]),
            queue_id,
            offset,
            count,
            flags,
            committed,
            suspend_ms,
            text_in(&fields[SUBSCRIPTION]),
            text_in(&fields[EXPRESSION_TYPE]),
            version,
        )
        if result is None:
            return False
        self.add_answer(header, result)
        return True

    cdef int add_answer(self, Header* header, GetMessageResult result) except -1:
        """Put an answer and its records behind the others, as `encode_command` writes it."""
        cdef Out* out = &self.out
        cdef Py_ssize_t frame = self.begin_answer(), k
        add(out, b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"', 69)
        add_number(out, result.next_queue_offset)
        add(out, b'","minOffset":"', 15)
        add_number(out, result.min_queue_offset)
        add(out, b'","maxOffset":"', 15)
        add_number(out, result.max_queue_offset)
        add(out, b'"},"flag":1,"language":"PYTHON","opaque":', 41)
        add_number(out, header.opaque)
        add(out, ENDS, len(ENDS))
        self.end_header(frame, result.buffer_total_size)
        for k in range(result.count):
            add(out, <const char*>result.found[k].at, result.found[k].size)
        return 0
