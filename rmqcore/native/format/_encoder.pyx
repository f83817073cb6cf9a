"""The properties of one record, gathered in place and written in one pass.

`gather` looks at the caller's objects and remembers pointers into them; `write_properties` copies
the bytes to where they belong. Between the two the objects must stay alive and unchanged. Nothing
here raises or allocates Python objects, so both may run under the tail's lock.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy
cimport cython

from rmqcore.native.format._bytes cimport RMQ_ASSERT
from rmqcore.native.format._layout cimport CRC_PROPERTY_SIZE, PROPERTIES_SIZE_MAX
from rmqcore.native.format._properties cimport (
    TIMER_ASKED, TIMER_DONE, TIMER_NAME_MIN, TimerWord, timer_word,
)
from rmqcore.native.format._record cimport (
    PropertyWalk, Slice, bytes_t, next_property, walk_properties,
)

cdef extern from *:
    """
    /* The UTF-8 bytes of a str, NULL when it has none. */
    static inline const char *rmq_text(PyObject *value, Py_ssize_t *size) {
        const char *at;
        if (PyUnicode_IS_COMPACT_ASCII(value)) {
            *size = PyUnicode_GET_LENGTH(value);
            return (const char *)PyUnicode_DATA(value);
        }
        at = PyUnicode_AsUTF8AndSize(value, size);
        if (at == NULL) PyErr_Clear();
        return at;
    }

    /* True when a byte is a space or less; eight bytes a step, the last ones twice. */
    static inline int rmq_has_low(const char *at, Py_ssize_t size) {
        const uint64_t ones = 0x0101010101010101ULL;
        uint64_t word, found = 0;
        if (size < 8) {
            for (Py_ssize_t i = 0; i < size; i++) found |= (uint8_t)at[i] <= 32;
            return found != 0;
        }
        for (Py_ssize_t i = 0; i < size; i += 8) {
            memcpy(&word, at + (i + 8 <= size ? i : size - 8), 8);
            found |= (word - 33 * ones) & ~word & (128 * ones);
        }
        return found != 0;
    }
    """
    const char* rmq_text(object value, Py_ssize_t* size) noexcept
    bint rmq_has_low(const char* at, Py_ssize_t size) noexcept


@cython.final
cdef class RecordEncoder:
    """Where the property bytes of the record being built come from."""

    def __cinit__(self):
        self.pieces = NULL
        self.capacity = 0
        self.count = 0

    def __dealloc__(self):
        free(self.pieces)

    cdef int add(self, const void* at, Py_ssize_t size, uint8_t end) noexcept:
        cdef Piece* piece
        if self.count == self.capacity and not self.grow():
            return NO_MEMORY
        if size > PROPERTIES_SIZE_MAX:
            return TOO_LONG
        piece = &self.pieces[self.count]
        piece.at = <bytes_t>at
        piece.size = <int32_t>size
        piece.end = end
        self.count += 1
        self.properties_size += size + (end != 0)
        return NO_PROBLEM

    cdef bint grow(self) noexcept:
        cdef Py_ssize_t capacity = 2 * self.capacity + 64
        cdef Piece* grown = <Piece*>realloc(self.pieces, capacity * sizeof(Piece))
        if grown != NULL:
            self.pieces = grown
            self.capacity = capacity
        return grown != NULL

    cdef int add_text(self, object value, bint is_key, uint8_t end) noexcept:
        cdef Py_ssize_t size
        cdef const char* at = rmq_text(value, &size) if PyUnicode_Check(value) else NULL
        cdef int problem
        if at == NULL:
            problem = NOT_TEXT
        elif size == 0:
            problem = EMPTY_TEXT
        elif not rmq_has_low(at, size):
            problem = self.add(at, size, end)
        elif memchr(at, 1, size) != NULL or memchr(at, 2, size) != NULL:
            problem = SEPARATOR_INSIDE
        elif is_key and memchr(at, 32, size) != NULL:
            problem = SPACE_IN_KEY
        else:
            problem = self.add(at, size, end)
        if problem != NO_PROBLEM:
            self.culprit = value
        return problem

    cdef int add_property(self, object name, object value) noexcept:
        cdef int problem = self.add_text(name, False, 1)
        return self.add_text(value, False, 2) if problem == NO_PROBLEM else problem

    cdef int gather(self, object tags, object keys, object properties, bint append_crc) noexcept:
        """Remember the pieces of all properties; NO_PROBLEM, or what is wrong with `culprit`.

        `keys` is a str, a tuple of str or None; `properties` a dict, a text as clients send it
        (bytes), or None.
        """
        cdef Py_ssize_t index, size, position = 0
        cdef PyObject* name
        cdef PyObject* value
        cdef const char* at
        cdef Slice word
        cdef bint has_keys = False
        cdef int problem = NO_PROBLEM
        self.count = 0
        self.properties_size = 0
        self.append_crc = append_crc
        self.timed = self.had_timer = False
        if keys is not None and (PyUnicode_Check(keys) or PyTuple_GET_SIZE(keys)):
            has_keys = True
            self.add(<const char*>b"KEYS", 4, 1)
            if PyUnicode_Check(keys):
                problem = self.add_text(keys, True, 2)
            else:
                for index in range(PyTuple_GET_SIZE(keys)):
                    problem = self.add_text(
                        <object>PyTuple_GET_ITEM(keys, index), True,
                        32 if index < PyTuple_GET_SIZE(keys) - 1 else 2,
                    )
                    if problem != NO_PROBLEM:
                        return problem
        if problem == NO_PROBLEM and tags is not None:
            self.add(<const char*>b"TAGS", 4, 1)
            problem = self.add_text(tags, False, 2)
        if properties is not None and PyBytes_CheckExact(properties):
            problem = self.add_pairs(
                <bytes_t>PyBytes_AS_STRING(properties), PyBytes_GET_SIZE(properties)
            )
        elif properties is not None:
            while problem == NO_PROBLEM and PyDict_Next(properties, &position, &name, &value):
                if PyUnicode_Check(<object>name):
                    at = rmq_text(<object>name, &size)
                    if at == NULL:
                        pass
                    elif size == 8 and memcmp(at, b"__CRC32#", 8) == 0:
                        continue
                    elif size == 4 and (
                        (has_keys and memcmp(at, b"KEYS", 4) == 0)
                        or (tags is not None and memcmp(at, b"TAGS", 4) == 0)
                    ):
                        self.culprit = <object>name
                        return GIVEN_TWICE
                    elif size >= TIMER_NAME_MIN:
                        word.at, word.size = <bytes_t>at, <int32_t>size
                        self.note_timer(&word)
                problem = self.add_property(<object>name, <object>value)
        if append_crc:
            self.properties_size += CRC_PROPERTY_SIZE
        elif self.properties_size == PROPERTIES_SIZE_MAX + 1 and problem == NO_PROBLEM:
            # nothing has to end the last one: a record of a batch may have come without
            self.pieces[self.count - 1].end = 0
            self.properties_size -= 1
        if problem == NO_PROBLEM and self.properties_size > PROPERTIES_SIZE_MAX:
            self.culprit = self.properties_size
            return TOO_LONG
        return problem

    cdef int add_pairs(self, bytes_t text, Py_ssize_t size) noexcept:
        """Remember the pairs of a properties text; malformed ones are dropped, as by Java."""
        cdef PropertyWalk walk
        cdef Slice name, value
        cdef int problem = NO_PROBLEM
        if size > PROPERTIES_SIZE_MAX:
            self.culprit = size
            return TOO_LONG
        walk = walk_properties(text, <int32_t>size)
        while problem == NO_PROBLEM and next_property(&walk, &name, &value):
            if name.size == 8 and memcmp(name.at, b"__CRC32#", 8) == 0:
                continue
            if name.size >= TIMER_NAME_MIN:
                self.note_timer(&name)
            # name, separator and value lie behind each other
            problem = self.add(name.at, name.size + 1 + value.size, 2)
        return problem

    cdef void note_timer(self, const Slice* name) noexcept:
        """Look at the name of a property."""
        cdef TimerWord word = timer_word(name)
        self.had_timer |= word == TIMER_DONE
        self.timed |= word == TIMER_ASKED

    cdef void write_properties(self, uint8_t* at) noexcept nogil:
        cdef Py_ssize_t index
        cdef const Piece* piece
        cdef const uint8_t* end = at + self.properties_size
        if self.append_crc:
            end -= CRC_PROPERTY_SIZE
        for index in range(self.count):
            piece = &self.pieces[index]
            memcpy(at, piece.at, piece.size)
            at += piece.size
            if piece.end:
                at[0] = piece.end
                at += 1
        RMQ_ASSERT(at == end)

    cdef str describe(self, int problem):
        """The refusal as a sentence for MessageIllegalError."""
        culprit = repr(self.culprit)
        if len(culprit) > 80:
            culprit = culprit[:80] + "…"
        return {
            NOT_TEXT: f"{culprit} is no text: tags, keys, property names and values are str "
                      "that UTF-8 can encode",
            EMPTY_TEXT: "a tag, key, property name or value is empty; the format cannot hold it",
            SEPARATOR_INSIDE: f"{culprit} contains U+0001 or U+0002, which separate properties",
            SPACE_IN_KEY: f"key {culprit} contains a space, which separates keys: "
                          "pass several keys as a tuple",
            GIVEN_TWICE: f"{culprit} is given as an argument and as a property; keep one",
            TOO_LONG: f"the properties take more than {PROPERTIES_SIZE_MAX} bytes",
            NO_MEMORY: "no memory for the properties",
        }[problem]
