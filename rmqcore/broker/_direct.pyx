"""Requests that are answered natively, straight from what a connection has received.

`DirectRequests` takes the frames at the beginning of what was received, as long as each is a
request that a class below it answers: with a JSON header of the form that Java's client writes, and
nothing that needs more looking at. The first other frame ends the run, untouched: it goes to the
processors, with all their checks and words. So nothing is refused here.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t

from rmqcore.native.format._bytes cimport load_i32, store_i32
from rmqcore.remoting._json_header cimport (
    CODE, FIELDS, FLAG, OPAQUE, REMARK, VERSION, Member, Text, add, next_byte, read_member,
    read_number, take, unescape,
)

cdef enum:
    QUOTE = 34
    BACKSLASH = 92
    PREFIX_SIZE = 8     # of a frame: its length, and that of its header
    LENGTH_SIZE = 4
    MAX_DIGITS = 18
    ANSWERS_MOST = 1 << 20  # bytes of answers after which the connection sends first


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


cdef bint read_fields(Text* text, Header* header, const Kind* kind, Py_ssize_t most) noexcept nogil:
    """The fields that a kind of request knows; others mean nothing to it."""
    cdef Part name, value
    cdef int slot
    if not take(text, 123):
        return False
    for _ in range(most):
        if not read_part(text, False, &name) or not take(text, 58):
            return False
        slot = kind.slot_of(&name)
        if not read_part(text, slot == kind.escaped, &value):
            return False
        if 0 <= slot < SLOTS:
            header.fields[slot] = value
        if take(text, 125):
            return True
        if not take(text, 44):
            return False
    return False


cdef bint read_header(Text* text, Header* header, const Kind* kind, Py_ssize_t most) noexcept nogil:
    """A whole header of a request of one kind that wants an answer."""
    cdef int64_t number
    cdef Part ignored
    cdef Member member
    cdef bint found
    cdef int slot
    header.code = header.opaque = 0
    for slot in range(SLOTS):
        header.fields[slot].size = -1
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
                if number != kind.codes[0] and number != kind.codes[1]:
                    return False
            elif member == OPAQUE:
                header.opaque = number
            elif member == FLAG and number != 0:
                return False
        elif member == FIELDS:
            if not read_fields(text, header, kind, most):
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


# ---- frames -------------------------------------------------------------------------------------


cdef class DirectRequests:
    """Answers requests of one kind, of all connections, on the event loop."""

    def __dealloc__(self):
        PyMem_Free(self.scratch)
        PyMem_Free(self.out.bytes)

    def answer(self, buffer, Py_ssize_t at, limits, str peer):
        """Answer requests, as many as come one behind the other.

        Args:
            buffer: what was received.
            at: where the next frame begins in it.
            limits: `FrameLimits`; a frame above them is left where it is.
            peer: the address of who has sent it.

        Returns:
            where the first frame begins that was not answered; and the answers, as `DirectAnswers`
            says.
        """
        cdef Py_ssize_t size
        cdef Py_buffer held
        self.out.size = 0
        self.begin_run(peer)
        PyObject_GetBuffer(buffer, &held, PyBUF_SIMPLE)
        try:
            self.frame_most = limits.frame_size
            self.header_most, self.field_most = limits.header_size, limits.field_count
            while held.len - at > PREFIX_SIZE and self.out.size < ANSWERS_MOST:
                size = self.answer_one(<const uint8_t*>held.buf + at, held.len - at)
                if size == 0:
                    break
                at += size
        finally:
            PyBuffer_Release(&held)
        return at, self.end_run(PyBytes_FromStringAndSize(self.out.bytes, self.out.size))

    cdef int begin_run(self, str peer) except -1:
        """Get ready for the frames of one peer."""
        return 0

    cdef object end_run(self, bytes answers):
        """What becomes of the answers to the frames of one peer."""
        return answers

    cdef bint answer_request(
        self, Header* header, const uint8_t* body, Py_ssize_t body_size
    ) except -1:
        """Do what a request asks for and add its answer; False when that is not for here."""
        return False

    cdef Py_ssize_t answer_one(self, const uint8_t* frame, Py_ssize_t room) except -1:
        """Answer the frame that begins here; its size, or 0 when it is none for here."""
        cdef Py_ssize_t length = load_i32(frame)
        cdef Py_ssize_t header_size = load_i32(frame + LENGTH_SIZE)
        cdef const uint8_t* body = frame + PREFIX_SIZE + header_size
        cdef Header header
        cdef Text text
        # a serialize type other than JSON is in the first byte of the header's size
        if not 0 < header_size <= min(self.header_most, length - LENGTH_SIZE):
            return 0
        if length + LENGTH_SIZE > min(room, self.frame_most):
            return 0
        text.at, text.end, text.scratch = frame + PREFIX_SIZE, body, self.room_for(header_size)
        if not read_header(&text, &header, &self.kind, self.field_most):
            return 0
        if not self.answer_request(&header, body, frame + LENGTH_SIZE + length - body):
            return 0
        return length + LENGTH_SIZE

    cdef uint8_t* room_for(self, Py_ssize_t size) except NULL:
        cdef uint8_t* grown
        if size > self.scratch_room:
            grown = <uint8_t*>PyMem_Realloc(self.scratch, 2 * size)
            if grown == NULL:
                raise MemoryError
            self.scratch, self.scratch_room = grown, 2 * size
        return self.scratch

    cdef Py_ssize_t begin_answer(self) except -1:
        """Begin a frame; where it does in the answers."""
        cdef Py_ssize_t frame = self.out.size
        add(&self.out, b"\0\0\0\0\0\0\0\0", PREFIX_SIZE)
        return frame

    cdef void end_header(self, Py_ssize_t frame, Py_ssize_t body_size) noexcept:
        """Set the lengths of a frame whose header is written, and whose body comes next."""
        cdef Py_ssize_t size = self.out.size - frame
        cdef uint8_t* at = <uint8_t*>self.out.bytes + frame
        store_i32(at, <int32_t>(size - LENGTH_SIZE + body_size))
        store_i32(at + LENGTH_SIZE, <int32_t>(size - PREFIX_SIZE))
