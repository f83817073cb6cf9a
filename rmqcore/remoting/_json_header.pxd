# JSON read and written byte by byte, for what answers requests natively.
from libc.stdint cimport int64_t, uint8_t


cdef enum Member:
    OTHER
    CODE
    FLAG
    OPAQUE
    VERSION
    LANGUAGE
    REMARK
    FIELDS


cdef struct Text:
    const uint8_t* at     # where the next byte is read
    const uint8_t* end
    uint8_t* scratch      # room for one text without its escapes; as large as the header


cdef struct Out:
    char* bytes
    Py_ssize_t size
    Py_ssize_t room


cdef inline uint8_t next_byte(Text* text) noexcept nogil:
    """The next byte that is no white space; 0 at the end. It is not passed."""
    while text.at < text.end and text.at[0] in (32, 9, 10, 13):
        text.at += 1
    return text.at[0] if text.at < text.end else 0


cdef inline bint take(Text* text, uint8_t wanted) noexcept nogil:
    """Pass one byte, if it comes next."""
    if next_byte(text) != wanted:
        return False
    text.at += 1
    return True


cdef int64_t unescape(Text* text) noexcept nogil
cdef bint read_number(Text* text, int64_t* value) noexcept nogil
cdef Member read_member(Text* text, bint* found) noexcept nogil
cdef int add(Out* out, const char* text, Py_ssize_t size) except -1
cdef int add_number(Out* out, int64_t number) except -1
