"""JSON headers as RocketMQ's clients write them, both ways, in one native call each.

`read_json` takes the form that every client has: an object whose numbers are whole and whose only
object, ``extFields``, holds text. It gives up at anything else, also at what is no JSON: `codec`
reads that, or refuses it with the reason.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT32_MIN, int64_t, uint8_t, uint32_t
from libc.stdio cimport snprintf
from libc.string cimport memcmp, memcpy

from rmqcore.remoting.codes import LanguageCode
from rmqcore.remoting.command import RemotingCommand

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    QUOTE = 34
    BACKSLASH = 92
    MAX_DIGITS = 18

cdef dict LANGUAGES = {language.name: language for language in LanguageCode}
cdef dict NAMES = {int(language): language.name.encode() for language in LanguageCode}
cdef object JAVA = LanguageCode.JAVA
cdef object UNKNOWN = LanguageCode.OTHER
cdef object AS_JSON = 0     # codes.JSON_HEADER
cdef const char* HEX = "0123456789abcdef"


# ---- reading ------------------------------------------------------------------------------------


cdef inline int hex_digit(uint8_t digit) noexcept nogil:
    """The value of a hexadecimal digit, -1 of another byte."""
    if 48 <= digit <= 57:
        return digit - 48
    digit |= 32
    return digit - 87 if 97 <= digit <= 102 else -1


cdef inline uint8_t plain_escape(uint8_t letter) noexcept nogil:
    """The byte that an escape of one letter stands for, 0 of another letter."""
    if letter == QUOTE or letter == BACKSLASH or letter == 47:
        return letter
    if letter == 110:
        return 10
    if letter == 116:
        return 9
    if letter == 114:
        return 13
    if letter == 98:
        return 8
    return 12 if letter == 102 else 0


cdef int64_t unescape(Text* text) noexcept nogil:
    """Copy a text up to its closing quote without its escapes; the bytes copied, or -1.

    The text stands behind the opening quote, and afterwards behind the closing one. -1: it does not
    end, holds a control character, or an escape of half a character.
    """
    cdef uint8_t* to = text.scratch
    cdef const uint8_t* at = text.at
    cdef uint32_t unit
    cdef int digit, k
    while at < text.end:
        if at[0] == QUOTE:
            text.at = at + 1
            return to - text.scratch
        if at[0] < 32:
            return -1
        if at[0] != BACKSLASH:
            to[0] = at[0]
            to += 1
            at += 1
            continue
        if text.end - at < 2:
            return -1
        if at[1] != 117:
            to[0] = plain_escape(at[1])
            if to[0] == 0:
                return -1
            to += 1
            at += 2
            continue
        if text.end - at < 6:
            return -1
        unit = 0
        for k in range(2, 6):
            digit = hex_digit(at[k])
            if digit < 0:
                return -1
            unit = unit << 4 | <uint32_t>digit
        at += 6
        if unit < 0x80:
            to[0] = <uint8_t>unit
            to += 1
        elif unit < 0x800:
            to[0] = <uint8_t>(0xC0 | unit >> 6)
            to[1] = <uint8_t>(0x80 | (unit & 0x3F))
            to += 2
        elif 0xD800 <= unit < 0xE000:
            return -1
        else:
            to[0] = <uint8_t>(0xE0 | unit >> 12)
            to[1] = <uint8_t>(0x80 | (unit >> 6 & 0x3F))
            to[2] = <uint8_t>(0x80 | (unit & 0x3F))
            to += 3
    return -1


cdef str read_text(Text* text):
    """A quoted text; None where there is none that can be read here."""
    cdef const uint8_t* begin
    cdef const uint8_t* at
    cdef int64_t size
    if not take(text, QUOTE):
        return None
    begin = at = text.at
    while at < text.end and at[0] != QUOTE and at[0] != BACKSLASH and at[0] >= 32:
        at += 1
    if at < text.end and at[0] == QUOTE:
        text.at = at + 1
        size = at - begin
    else:
        size = unescape(text)
        if size < 0:
            return None
        begin = text.scratch
    return PyUnicode_DecodeUTF8(<const char*>begin, size, NULL)


cdef bint read_number(Text* text, int64_t* value) noexcept nogil:
    """A whole number of at most 18 digits; False where there is none."""
    cdef bint negative = take(text, 45)
    cdef const uint8_t* begin = text.at
    cdef int64_t number = 0
    if not negative:
        next_byte(text)
        begin = text.at
    while text.at < text.end and 48 <= text.at[0] <= 57:
        if text.at - begin >= MAX_DIGITS:
            return False
        number = number * 10 + text.at[0] - 48
        text.at += 1
    if text.at == begin or (begin[0] == 48 and text.at - begin > 1):
        return False
    value[0] = -number if negative else number
    return text.at == text.end or text.at[0] not in (46, 69, 101)


cdef bint read_null(Text* text) noexcept nogil:
    """Pass `null`, if it comes next."""
    if next_byte(text) != 110 or text.end - text.at < 4 or memcmp(text.at, b"null", 4) != 0:
        return False
    text.at += 4
    return True


cdef dict read_fields(Text* text, Py_ssize_t most):
    """An object of texts; None where there is none, or more of them."""
    cdef dict fields = {}
    cdef str name, value
    if read_null(text):
        return fields
    if not take(text, 123):
        return None
    if take(text, 125):
        return fields
    while True:
        name = read_text(text)
        if name is None or not take(text, 58):
            return None
        value = read_text(text)
        if value is None:
            return None
        fields[name] = value
        if len(fields) > most:
            return None
        if take(text, 125):
            return fields
        if not take(text, 44):
            return None


cdef Member read_member(Text* text, bint* found) noexcept nogil:
    """The name of a member of the header, and its colon."""
    cdef const uint8_t* begin
    cdef int64_t size
    cdef Member member = OTHER
    found[0] = False
    if not take(text, QUOTE):
        return member
    begin = text.at
    while text.at < text.end and text.at[0] != QUOTE:
        if text.at[0] == BACKSLASH or text.at[0] < 32 or text.at[0] > 126:
            return member
        text.at += 1
    size = text.at - begin
    if text.at == text.end:
        return member
    text.at += 1
    if size == 4 and memcmp(begin, b"code", 4) == 0:
        member = CODE
    elif size == 4 and memcmp(begin, b"flag", 4) == 0:
        member = FLAG
    elif size == 6 and memcmp(begin, b"opaque", 6) == 0:
        member = OPAQUE
    elif size == 6 and memcmp(begin, b"remark", 6) == 0:
        member = REMARK
    elif size == 7 and memcmp(begin, b"version", 7) == 0:
        member = VERSION
    elif size == 8 and memcmp(begin, b"language", 8) == 0:
        member = LANGUAGE
    elif size == 9 and memcmp(begin, b"extFields", 9) == 0:
        member = FIELDS
    found[0] = take(text, 58)
    return member


cdef object read_header(Text* text, Py_ssize_t most):
    """The command of a whole header, or None."""
    cdef int64_t numbers[5]
    cdef int64_t unused
    cdef dict fields = {}
    cdef str remark = None
    cdef str word
    cdef object language = JAVA
    cdef Member member
    cdef bint found
    for member in range(CODE, LANGUAGE):
        numbers[<int>member] = 0
    if not take(text, 123):
        return None
    if not take(text, 125):
        while True:
            member = read_member(text, &found)
            if not found:
                return None
            if CODE <= member <= VERSION:
                if not read_number(text, &numbers[<int>member]):
                    return None
                if not INT32_MIN <= numbers[<int>member] <= INT32_MAX:
                    return None
            elif member == FIELDS:
                fields = read_fields(text, most)
                if fields is None:
                    return None
            elif member == OTHER and next_byte(text) != QUOTE:
                if not read_number(text, &unused):
                    return None
            elif member == REMARK and read_null(text):
                remark = None
            else:
                word = read_text(text)
                if word is None:
                    return None
                if member == LANGUAGE:
                    language = LANGUAGES.get(word, UNKNOWN)
                elif member == REMARK:
                    remark = word
            if take(text, 125):
                break
            if not take(text, 44):
                return None
    if next_byte(text) != 0 or text.at != text.end:
        return None
    return RemotingCommand(
        numbers[<int>CODE],
        fields,
        b"",
        remark,
        numbers[<int>OPAQUE],
        numbers[<int>FLAG],
        numbers[<int>VERSION],
        language,
        AS_JSON,
    )


def read_json(buffer, Py_ssize_t at, Py_ssize_t size, Py_ssize_t field_count):
    """Read the header at a place of a buffer.

    Args:
        buffer: what was received.
        at, size: where the header is in it, in bytes.
        field_count: most header fields.

    Returns:
        the `RemotingCommand`, without its body; None for a header of another form, or with more
        fields.
    """
    cdef Py_buffer view
    cdef Text text
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    text.scratch = NULL
    try:
        if at < 0 or size < 0 or at > view.len - size:
            raise ValueError("a header beyond its buffer")
        text.at = <const uint8_t*>view.buf + at
        text.end = text.at + size
        text.scratch = <uint8_t*>PyMem_Malloc(size + 1)
        if text.scratch == NULL:
            raise MemoryError
        return read_header(&text, field_count)
    except UnicodeDecodeError:
        return None
    finally:
        PyMem_Free(text.scratch)
        PyBuffer_Release(&view)


# ---- writing ------------------------------------------------------------------------------------


cdef int reserve(Out* out, Py_ssize_t more) except -1:
    """Make room behind what is written."""
    cdef char* grown
    if out.room - out.size >= more:
        return 0
    out.room = 2 * out.room + more
    grown = <char*>PyMem_Realloc(out.bytes, out.room)
    if grown == NULL:
        raise MemoryError
    out.bytes = grown
    return 0


cdef int add(Out* out, const char* text, Py_ssize_t size) except -1:
    reserve(out, size)
    memcpy(out.bytes + out.size, text, size)
    out.size += size
    return 0


cdef int add_number(Out* out, int64_t number) except -1:
    reserve(out, 24)
    out.size += snprintf(out.bytes + out.size, 24, "%lld", <long long>number)
    return 0


cdef int add_quoted(Out* out, str text) except -1:
    """Add a text in quotes; half a character becomes a question mark."""
    cdef Py_ssize_t size
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef char* to
    cdef char letter
    cdef bytes kept
    try:
        at = <const uint8_t*>PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:
        kept = text.encode("utf-8", "replace")
        at = <const uint8_t*>PyBytes_AS_STRING(kept)
        size = PyBytes_GET_SIZE(kept)
    end = at + size
    reserve(out, 6 * size + 2)
    to = out.bytes + out.size
    to[0] = QUOTE
    to += 1
    while at < end:
        if at[0] >= 32 and at[0] != QUOTE and at[0] != BACKSLASH:
            to[0] = <char>at[0]
            to += 1
        else:
            letter = letter_of(at[0])
            to[0] = BACKSLASH
            to[1] = letter
            to += 2
            if letter == 117:
                memcpy(to, b"00", 2)
                to[2] = HEX[at[0] >> 4]
                to[3] = HEX[at[0] & 15]
                to += 4
        at += 1
    to[0] = QUOTE
    out.size = to + 1 - out.bytes
    return 0


cdef inline char letter_of(uint8_t byte) noexcept nogil:
    """The letter of the escape that stands for a byte; u where there is no shorter one."""
    if byte == QUOTE or byte == BACKSLASH:
        return <char>byte
    if byte == 10:
        return 110
    if byte == 9:
        return 116
    if byte == 13:
        return 114
    if byte == 8:
        return 98
    return 102 if byte == 12 else 117


cdef int add_header(Out* out, object command) except -1:
    cdef dict fields = command.ext_fields
    cdef str name, value
    cdef bytes language = NAMES[command.language]
    cdef bint first = True
    add(out, b'{"code":', 8)
    add_number(out, command.code)
    if fields:
        add(out, b',"extFields":{', 14)
        for name, value in fields.items():
            if not first:
                add(out, b",", 1)
            first = False
            add_quoted(out, name)
            add(out, b":", 1)
            add_quoted(out, value)
        add(out, b"}", 1)
    add(out, b',"flag":', 8)
    add_number(out, command.flag)
    add(out, b',"language":"', 13)
    add(out, PyBytes_AS_STRING(language), PyBytes_GET_SIZE(language))
    add(out, b'","opaque":', 11)
    add_number(out, command.opaque)
    if command.remark is not None:
        add(out, b',"remark":', 10)
        add_quoted(out, command.remark)
    add(out, b',"serializeTypeCurrentRPC":"JSON","version":', 44)
    add_number(out, command.version)
    add(out, b"}", 1)
    return 0


def write_json(command):
    """Write the header of a command as JSON; the bytes.

    Raises:
        TypeError: a name or a value of a field is no text.
    """
    cdef Out out
    out.size, out.room = 0, 512
    out.bytes = <char*>PyMem_Malloc(out.room)
    if out.bytes == NULL:
        raise MemoryError
    try:
        add_header(&out, command)
        return PyBytes_FromStringAndSize(out.bytes, out.size)
    finally:
        PyMem_Free(out.bytes)
