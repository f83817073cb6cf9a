"""Plain sends, from what was received to what is answered, in one native call for all of them.

A plain send is 310 or 320 with a header under short names, for a topic that needs no more looking
at, with properties that ask the broker for nothing. Each is appended and answered here.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t
from libc.string cimport memcmp, memcpy, strlen
from posix.strings cimport strncasecmp

from rmqcore.broker._direct cimport SLOTS, DirectRequests, Header, Part, number_in
from rmqcore.broker.send._send_request cimport Properties, look_over
from rmqcore.native.format._receipt cimport PutMessageResult
from rmqcore.native.format._wire_message cimport WireMessage
from rmqcore.remoting._json_header cimport Out, add, add_number

from rmqcore.broker.send.batches import RECEIPT as _RECEIPT
from rmqcore.errors import MessageIllegalError, StoreError
from rmqcore.native.format._numbers import SysFlag
from rmqcore.remoting import LaterAnswers, RequestCode
from rmqcore.remoting.send_header import SEND_LETTERS as _SEND_LETTERS

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef extern from "string.h":
    void* memmem(const void* at, size_t size, const void* part, size_t part_size) nogil

cdef enum:
    QUOTE = 34
    BACKSLASH = 92
    VALUE_END = 2       # behind a property's value
    BATCH_MOST = 4 << 20  # bytes, the ids of whose messages fit into the header of an answer

# slots of a header's fields
cdef int GROUP = slot_named("producerGroup")
cdef int TOPIC = slot_named("topic")
cdef int QUEUE_ID = slot_named("queueId")
cdef int SYS_FLAG = slot_named("sysFlag")
cdef int BORN = slot_named("bornTimestamp")
cdef int MESSAGE_FLAG = slot_named("flag")
cdef int PROPERTIES = slot_named("properties")
cdef int RECONSUMED = slot_named("reconsumeTimes")
cdef int RECONSUME_MAX = slot_named("maxReconsumeTimes")
cdef int BATCH = slot_named("batch")
cdef int SEND = int(RequestCode.SEND_MESSAGE_V2)
cdef int SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
# the begin of what no message of a batch may have
cdef bytes RECEIPT = _RECEIPT
# what a plain send has not got
cdef int64_t NOT_PLAIN = SysFlag.HOSTS_V6 | SysFlag.TRANSACTION_MASK


cdef int slot_named(str name) except -1:
    return ord(_SEND_LETTERS[name]) - ord("a")


cdef int letter_slot(const Part* name) noexcept nogil:
    """Names of one letter have their slots in alphabetical order."""
    cdef int letter = name.at[0] - 97 if name.size == 1 else SLOTS
    return letter if 0 <= letter < SLOTS else SLOTS


cdef bint is_word(const Part* part, const char* word) noexcept nogil:
    return <size_t>part.size == strlen(word) and strncasecmp(
        <const char*>part.at, word, part.size
    ) == 0


cdef bint is_quotable(const char* at, Py_ssize_t size) noexcept nogil:
    """Tell whether a text can stand in JSON as it is."""
    cdef Py_ssize_t k
    for k in range(size):
        if not 32 <= at[k] < 127 or at[k] == QUOTE or at[k] == BACKSLASH:
            return False
    return True


cdef bint is_ascii(const uint8_t* at, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t k
    cdef uint8_t all_bits = 0
    for k in range(size):
        all_bits |= at[k]
    return all_bits < 128


cdef bint is_plain_batch(const uint8_t* at, Py_ssize_t size) noexcept:
    """Tell whether the answer to a batch fits, and no message of it names the receipt of a pop."""
    cdef const char* receipt = PyBytes_AS_STRING(RECEIPT)
    return size <= BATCH_MOST and memmem(at, size, receipt, PyBytes_GET_SIZE(RECEIPT)) == NULL


cdef class DirectSends(DirectRequests):
    """Answers the plain sends of all connections, on the event loop.

    Args:
        store: what is appended to; its `append_now` is called.
        facts: what the plain sends to a topic have in common, as (queues, system flags to add,
            the broker's own properties, how an answer begins up to the message id, how it ends
            behind the opaque); None for a topic whose sends are not plain.
        stored: called after each append with topic, queue id, receipt, and whether the message is
            of an ordered kind.
        confirmed: where the store waits for disk or slaves, called with the last receipt of all
            that came at once and the answers; gives what is to be sent when they have it.
    """

    cdef object store
    cdef object facts
    cdef object stored
    cdef object confirmed
    cdef str born_host
    # of this run
    cdef bint waits
    cdef PutMessageResult last
    # of the topic that was looked at last in this run
    cdef bytes topic_bytes
    cdef str topic
    cdef bytes own_properties
    cdef bytes begin
    cdef bytes end
    cdef int64_t queue_count
    cdef int64_t more_flags

    def __init__(self, store, facts, stored, confirmed):
        self.store = store
        self.facts = facts
        self.stored = stored
        self.confirmed = confirmed
        self.kind.codes = [SEND, SEND_BATCH]
        self.kind.slot_of = letter_slot
        self.kind.escaped = PROPERTIES

    cdef int begin_run(self, str peer) except -1:
        self.born_host = peer
        self.topic_bytes = None
        self.waits = self.store.waits
        self.last = None
        return 0

    cdef object end_run(self, bytes answers):
        cdef PutMessageResult last = self.last
        if last is None or not self.waits:
            return answers
        self.last = None
        return LaterAnswers(len(answers), self.confirmed(last, answers))

    cdef bint answer_request(
        self, Header* header, const uint8_t* body, Py_ssize_t body_size
    ) except -1:
        """Append and answer what a header and a body say."""
        cdef Part* fields = header.fields
        cdef bint batch = header.code == SEND_BATCH
        cdef int64_t queue_id = number_in(&fields[QUEUE_ID], INT32_MAX)
        cdef int64_t sys_flag = number_in(&fields[SYS_FLAG], INT32_MAX)
        cdef int64_t born = number_in(&fields[BORN], INT64_MAX)
        cdef int64_t flag = number_in(&fields[MESSAGE_FLAG], INT32_MAX)
        cdef int64_t reconsumed = 0
        cdef Part* given = &fields[PROPERTIES]
        cdef Properties found
        cdef PutMessageResult receipt
        if fields[RECONSUMED].size >= 0:
            reconsumed = number_in(&fields[RECONSUMED], INT32_MAX)
        if min(queue_id, sys_flag, born, flag, reconsumed) < 0 or sys_flag & NOT_PLAIN:
            return False
        if fields[GROUP].size < 0 or fields[RECONSUME_MAX].size >= 0:
            return False
        if not batch and fields[BATCH].size >= 0 and not is_word(&fields[BATCH], b"false"):
            return False
        if fields[TOPIC].size < 0 or not self.knows(&fields[TOPIC]) or queue_id >= self.queue_count:
            return False
        if given.size < 0:
            given.at, given.size = body, 0
        if not is_ascii(given.at, given.size):
            try:
                PyUnicode_DecodeUTF8(<const char*>given.at, given.size, NULL)
            except UnicodeDecodeError:
                return False
        found = look_over(<const char*>given.at, given.size)
        if not is_quotable(found.unique_key, found.unique_key_size):
            return False
        if not batch and (found.unique_key == NULL or not found.plain):
            return False
        if body_size == 0 or (batch and not is_plain_batch(body, body_size)):
            return False  # it is refused, or looked at
        if self.waits and not found.waits:
            return False  # its answer goes out before those that wait
        cdef WireMessage message = WireMessage.__new__(WireMessage)
        message.topic = self.topic
        message.body = PyBytes_FromStringAndSize(<const char*>body, body_size)
        message.properties = None if batch else self.stored_properties(given)
        message.born_host = self.born_host
        message.fields.queue_id = queue_id
        message.fields.flag = flag
        message.fields.sys_flag = sys_flag | self.more_flags
        message.fields.born_timestamp = born
        message.fields.reconsume_times = reconsumed
        try:
            receipt = self.store.append_now(message)
        except (MessageIllegalError, StoreError):
            # nothing was stored: the processor is refused the same, and says so
            return False
        if receipt is None:
            return False
        self.add_answer(header, queue_id, receipt, &found)
        self.last = receipt
        self.stored(self.topic, queue_id, receipt, bool(found.ordered))
        return True

    cdef bint knows(self, const Part* topic) except -1:
        """Tell whether sends to a topic are plain, and have its facts ready."""
        cdef bytes known = self.topic_bytes
        if known is not None and PyBytes_GET_SIZE(known) == topic.size:
            if memcmp(PyBytes_AS_STRING(known), topic.at, topic.size) == 0:
                return True
        name = PyUnicode_DecodeASCII(<const char*>topic.at, topic.size, NULL)
        facts = self.facts(name)
        if facts is None:
            return False
        (
            self.queue_count, self.more_flags, self.own_properties, self.begin, self.end
        ) = facts
        self.topic, self.topic_bytes = name, name.encode()
        return True

    cdef bytes stored_properties(self, const Part* given):
        """The message's own properties, with those of the broker behind them."""
        cdef Py_ssize_t own_size = PyBytes_GET_SIZE(self.own_properties)
        cdef bint ended = given.at[given.size - 1] == VALUE_END
        cdef bytes stored = PyBytes_FromStringAndSize(NULL, given.size + (not ended) + own_size)
        cdef char* to = PyBytes_AS_STRING(stored)
        memcpy(to, given.at, given.size)
        to += given.size
        if not ended:
            to[0] = VALUE_END
            to += 1
        memcpy(to, PyBytes_AS_STRING(self.own_properties), own_size)
        return stored

    cdef int add_answer(
        self, Header* header, int64_t queue_id, PutMessageResult receipt, Properties* found
    ) except -1:
        """Put an answer behind the others, as `encode_command` writes it."""
        cdef Out* out = &self.out
        cdef Py_ssize_t frame = self.begin_answer(), size
        cdef str message_id = receipt.message_id
        cdef const char* text = PyUnicode_AsUTF8AndSize(message_id, &size)
        add(out, PyBytes_AS_STRING(self.begin), PyBytes_GET_SIZE(self.begin))
        add(out, text, size)
        add(out, b'","queueId":"', 13)
        add_number(out, queue_id)
        add(out, b'","queueOffset":"', 17)
        add_number(out, receipt.queue_offset)
        if found.unique_key != NULL:
            add(out, b'","transactionId":"', 19)
            add(out, found.unique_key, found.unique_key_size)
        add(out, b'"},"flag":1,"language":"PYTHON","opaque":', 41)
        add_number(out, header.opaque)
        add(out, PyBytes_AS_STRING(self.end), PyBytes_GET_SIZE(self.end))
        self.end_header(frame, 0)
        return 0
