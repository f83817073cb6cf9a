"""Plain sends, from what was received to what is answered, in one native call for all of them.

`DirectSends` takes the frames at the beginning of what a connection has received, as long as each
is a plain send: 310 or 320 with a JSON header under short names, for a topic that needs no more
looking at, with properties that ask the broker for nothing. Each is appended and answered here. The
first other frame ends the run, untouched: it goes to the processors, with all their checks and
words. So nothing is refused here.

Floor: F8; imports only rooms above.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcmp, memcpy, strlen
from posix.strings cimport strncasecmp

from rmqcore.broker._send_request cimport Properties, look_over
from rmqcore.native.format._bytes cimport load_i32, store_i32
from rmqcore.native.format._receipt cimport PutMessageResult
from rmqcore.remoting._json_header cimport (
    CODE, FIELDS, FLAG, OPAQUE, REMARK, VERSION, Member, Out, Text, add, add_number,
    next_byte, read_member, read_number, take, unescape,
)

from rmqcore.errors import MessageIllegalError, StoreError
from rmqcore.native.format._numbers import SysFlag
from rmqcore.remoting import RequestCode
from rmqcore.store.wire_puts import WireMessage

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    QUOTE = 34
    BACKSLASH = 92
    PREFIX_SIZE = 8     # of a frame: its length, and that of its header
    LENGTH_SIZE = 4
    MAX_DIGITS = 18
    VALUE_END = 2       # behind a property's value
    # names of a header's fields, counted from 'a'
    LETTERS = 14
    GROUP = 0
    TOPIC = 1
    QUEUE_ID = 4
    SYS_FLAG = 5
    BORN = 6
    MESSAGE_FLAG = 7
    PROPERTIES = 8
    RECONSUMED = 9
    RECONSUME_MAX = 11
    BATCH = 12

cdef int SEND = int(RequestCode.SEND_MESSAGE_V2)
cdef int SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
# what a plain send has not got
cdef int64_t NOT_PLAIN = SysFlag.HOSTS_V6 | SysFlag.TRANSACTION_MASK


cdef struct Part:
    const uint8_t* at
    Py_ssize_t size     # -1: there is none


cdef struct Header:
    int64_t code
    int64_t opaque
    Part fields[LETTERS]


# ---- a header of the form that Java's client writes ----------------------------------------------


cdef bint read_part(Text* text, bint escaped, Part* part) noexcept nogil:
    """A quoted text of printable ASCII; with `escaped`, any text, without its escapes."""
    cdef const uint8_t* begin
    if not take(text, QUOTE):
        return False
    begin = text.at
    while text.at < text.end and 32 <= text.at[0] < 127 and text.at[0] not in (QUOTE, BACKSLASH):
        text.at += 1
    if text.at < text.end and text.at[0] == QUOTE:
        part.at, part.size = begin, text.at - begin
        text.at += 1
        return True
    text.at = begin
    part.at = text.scratch
    part.size = unescape(text) if escaped else -1
    return part.size >= 0


cdef bint read_fields(Text* text, Header* header, Py_ssize_t most) noexcept nogil:
    """The fields with names of one letter; others mean nothing to a send."""
    cdef Part name, value
    cdef int letter
    if not take(text, 123):
        return False
    for _ in range(most):
        if not read_part(text, False, &name) or not take(text, 58):
            return False
        letter = name.at[0] - 97 if name.size == 1 else LETTERS
        if not read_part(text, letter == PROPERTIES, &value):
            return False
        if 0 <= letter < LETTERS:
            header.fields[letter] = value
        if take(text, 125):
            return True
        if not take(text, 44):
            return False
    return False


cdef bint read_header(Text* text, Header* header, Py_ssize_t most) noexcept nogil:
    """A whole header of a request that wants an answer."""
    cdef int64_t number
    cdef Part ignored
    cdef Member member
    cdef bint found
    cdef int letter
    header.code = header.opaque = 0
    for letter in range(LETTERS):
        header.fields[letter].size = -1
    if not take(text, 123):
        return False
    while True:
        member = read_member(text, &found)
        if not found:
            return False
        if CODE <= member <= VERSION:
            if not read_number(text, &number) or not INT32_MIN <= number <= INT32_MAX:
                return False
            if member == CODE:
                header.code = number
                if number != SEND and number != SEND_BATCH:
                    return False
            elif member == OPAQUE:
                header.opaque = number
            elif member == FLAG and number != 0:
                return False
        elif member == FIELDS:
            if not read_fields(text, header, most):
                return False
        elif member == REMARK or not read_part(text, False, &ignored):
            return False
        if take(text, 125):
            return header.code != 0 and next_byte(text) == 0 and text.at == text.end
        if not take(text, 44):
            return False


cdef int64_t number_in(const Part* part, int64_t most) noexcept nogil:
    """A field's whole number; -1 when there is none from 0 to `most`."""
    cdef int64_t number = 0
    cdef Py_ssize_t k
    if not 0 < part.size <= MAX_DIGITS:
        return -1
    for k in range(part.size):
        if not 48 <= part.at[k] <= 57:
            return -1
        number = number * 10 + part.at[k] - 48
    return number if number <= most else -1


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


# ---- sends --------------------------------------------------------------------------------------


cdef class DirectSends:
    """Answers the plain sends of all connections, on the event loop.

    Args:
        store: what is appended to; its `append_now` is called.
        facts: what the plain sends to a topic have in common, as (queues, system flags to add,
            the broker's own properties, how an answer begins up to the message id, how it ends
            behind the opaque); None for a topic whose sends are not plain.
        stored: called after each append with topic, queue id, receipt, and whether the message is
            of an ordered kind.
    """

    cdef object store
    cdef object facts
    cdef object stored
    cdef uint8_t* scratch
    cdef Py_ssize_t scratch_room
    cdef Out out
    # of the topic that was looked at last in this run
    cdef bytes topic_bytes
    cdef str topic
    cdef bytes own_properties
    cdef bytes begin
    cdef bytes end
    cdef int64_t queue_count
    cdef int64_t more_flags

    def __init__(self, store, facts, stored):
        self.store = store
        self.facts = facts
        self.stored = stored

    def __dealloc__(self):
        PyMem_Free(self.scratch)
        PyMem_Free(self.out.bytes)

    def answer(self, buffer, Py_ssize_t at, limits, str born_host):
        """Answer plain sends, as many as come one behind the other.

        Args:
            buffer: what was received.
            at: where the next frame begins in it.
            limits: `FrameLimits`; a frame above them is left where it is.
            born_host: the peer's address.

        Returns:
            where the first frame begins that was not answered; and the answers, bytes.
        """
        cdef Py_ssize_t frame_most = limits.frame_size, header_most = limits.header_size
        cdef Py_ssize_t field_most = limits.field_count, size
        cdef Py_buffer held
        self.out.size = 0
        self.topic_bytes = None
        PyObject_GetBuffer(buffer, &held, PyBUF_SIMPLE)
        try:
            while held.len - at > PREFIX_SIZE:
                size = self.answer_one(
                    <const uint8_t*>held.buf + at, min(held.len - at, frame_most), header_most,
                    field_most, born_host,
                )
                if size == 0:
                    break
                at += size
        finally:
            PyBuffer_Release(&held)
        return at, PyBytes_FromStringAndSize(self.out.bytes, self.out.size)

    cdef Py_ssize_t answer_one(
        self, const uint8_t* frame, Py_ssize_t room, Py_ssize_t header_most,
        Py_ssize_t field_most, str born_host,
    ) except -1:
        """Answer the frame that begins here; its size, or 0 when it is none of a plain send."""
        cdef Py_ssize_t length = load_i32(frame)
        cdef Py_ssize_t header_size = load_i32(frame + LENGTH_SIZE)
        cdef const uint8_t* body = frame + PREFIX_SIZE + header_size
        cdef Header header
        cdef Text text
        cdef PutMessageResult receipt
        # a serialize type other than JSON is in the first byte of the header's size
        if not 0 < header_size <= min(header_most, length - LENGTH_SIZE):
            return 0
        if length + LENGTH_SIZE > room:
            return 0
        text.at, text.end, text.scratch = frame + PREFIX_SIZE, body, self.room_for(header_size)
        if not read_header(&text, &header, field_most):
            return 0
        receipt = self.append(
            &header, body, frame + LENGTH_SIZE + length - body, born_host
        )
        return 0 if receipt is None else length + LENGTH_SIZE

    cdef uint8_t* room_for(self, Py_ssize_t size) except NULL:
        cdef uint8_t* grown
        if size > self.scratch_room:
            grown = <uint8_t*>PyMem_Realloc(self.scratch, 2 * size)
            if grown == NULL:
                raise MemoryError
            self.scratch, self.scratch_room = grown, 2 * size
        return self.scratch

    cdef PutMessageResult append(
        self, Header* header, const uint8_t* body, Py_ssize_t body_size, str born_host
    ):
        """Append and answer what a header and a body say; None when that is not for here."""
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
            return None
        if fields[GROUP].size < 0 or fields[RECONSUME_MAX].size >= 0:
            return None
        if not batch and fields[BATCH].size >= 0 and not is_word(&fields[BATCH], b"false"):
            return None
        if fields[TOPIC].size < 0 or not self.knows(&fields[TOPIC]) or queue_id >= self.queue_count:
            return None
        if given.size < 0:
            given.at, given.size = body, 0
        if not is_ascii(given.at, given.size):
            try:
                PyUnicode_DecodeUTF8(<const char*>given.at, given.size, NULL)
            except UnicodeDecodeError:
                return None
        found = look_over(<const char*>given.at, given.size)
        if not is_quotable(found.unique_key, found.unique_key_size):
            return None
        if not batch and (found.unique_key == NULL or not found.plain):
            return None
        message = WireMessage(
            self.topic,
            queue_id,
            PyBytes_FromStringAndSize(<const char*>body, body_size),
            None if batch else self.stored_properties(given),
            flag,
            sys_flag | self.more_flags,
            born,
            born_host,
            reconsumed,
        )
        try:
            receipt = self.store.append_now(message)
        except (MessageIllegalError, StoreError):
            # nothing was stored: the processor is refused the same, and says so
            return None
        if receipt is not None:
            self.add_answer(header, queue_id, receipt, &found)
            self.stored(self.topic, queue_id, receipt, bool(found.ordered))
        return receipt

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
        cdef Py_ssize_t frame = out.size, size
        cdef str message_id = receipt.message_id
        cdef const char* text = PyUnicode_AsUTF8AndSize(message_id, &size)
        add(out, b"\0\0\0\0\0\0\0\0", PREFIX_SIZE)
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
        size = out.size - frame
        store_i32(<uint8_t*>out.bytes + frame, <int32_t>(size - LENGTH_SIZE))
        store_i32(<uint8_t*>out.bytes + frame + LENGTH_SIZE, <int32_t>(size - PREFIX_SIZE))
        return 0
