"""The properties of one record, gathered in place and written in one pass.

`gather` looks at the caller's objects and remembers pointers into them; `write_properties` copies
the bytes to where they belong. Between the two the objects must stay alive and unchanged. Nothing
here raises or allocates Python objects, so both may run under the tail's lock.

Floor: F0; imports nothing of rmqcore.
"""

from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy
cimport cython

from rmqcore._layout cimport CRC_PROPERTY_SIZE, PROPERTIES_SIZE_MAX
from rmqcore._record cimport bytes_t

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object value, Py_ssize_t* size) noexcept
    void PyErr_Clear() noexcept


@cython.final
cdef class RecordEncoder:
    """Where the property bytes of the record being built come from."""

    def __cinit__(self):
        self.pieces = NULL
        self.capacity = 0
        self.count = 0

    def __dealloc__(self):
        free(self.pieces)

    cdef int add(self, const void* at, Py_ssize_t size) noexcept:
        cdef Piece* grown
        if self.count == self.capacity:
            grown = <Piece*>realloc(self.pieces, (2 * self.capacity + 64) * sizeof(Piece))
            if grown == NULL:
                return NO_MEMORY
            self.pieces = grown
            self.capacity = 2 * self.capacity + 64
        if size > PROPERTIES_SIZE_MAX:
            return TOO_LONG
        self.pieces[self.count].at = <bytes_t>at
        self.pieces[self.count].size = <int32_t>size
        self.count += 1
        self.properties_size += size
        return NO_PROBLEM

    cdef int add_text(self, object value, bint is_key) noexcept:
        cdef Py_ssize_t size
        cdef const char* at
        self.culprit = value
        if not PyUnicode_Check(value):
            return NOT_TEXT
        at = PyUnicode_AsUTF8AndSize(value, &size)
        if at == NULL:
            PyErr_Clear()
            return NOT_TEXT
        if size == 0:
            return EMPTY_TEXT
        if memchr(at, 1, size) != NULL or memchr(at, 2, size) != NULL:
            return SEPARATOR_INSIDE
        if is_key and memchr(at, 32, size) != NULL:
            return SPACE_IN_KEY
        return self.add(at, size)

    cdef int add_property(self, object name, object value) noexcept:
        cdef int problem = self.add_text(name, False)
        if problem == NO_PROBLEM:
            problem = self.add(<const char*>b"\x01", 1)
        if problem == NO_PROBLEM:
            problem = self.add_text(value, False)
        if problem == NO_PROBLEM:
            problem = self.add(<const char*>b"\x02", 1)
        return problem

    cdef int gather(self, object tags, object keys, object properties, bint append_crc) noexcept:
        """Remember the pieces of all properties; NO_PROBLEM, or what is wrong with `culprit`.

        `keys` is a str, a tuple of str or None; `properties` a dict or None.
        """
        cdef Py_ssize_t index, position = 0
        cdef PyObject* name
        cdef PyObject* value
        cdef Py_ssize_t size
        cdef const char* at
        cdef bint has_keys = False
        cdef int problem = NO_PROBLEM
        self.count = 0
        self.properties_size = 0
        self.append_crc = append_crc
        if keys is not None and (PyUnicode_Check(keys) or PyTuple_GET_SIZE(keys)):
            has_keys = True
            self.add(<const char*>b"KEYS\x01", 5)
            if PyUnicode_Check(keys):
                problem = self.add_text(keys, True)
            else:
                for index in range(PyTuple_GET_SIZE(keys)):
                    if index:
                        self.add(<const char*>b" ", 1)
                    problem = self.add_text(<object>PyTuple_GET_ITEM(keys, index), True)
                    if problem != NO_PROBLEM:
                        return problem
            self.add(<const char*>b"\x02", 1)
        if problem == NO_PROBLEM and tags is not None:
            self.add(<const char*>b"TAGS\x01", 5)
            problem = self.add_text(tags, False)
            self.add(<const char*>b"\x02", 1)
        if properties is not None:
            while problem == NO_PROBLEM and PyDict_Next(properties, &position, &name, &value):
                if PyUnicode_Check(<object>name):
                    at = PyUnicode_AsUTF8AndSize(<object>name, &size)
                    if at == NULL:
                        PyErr_Clear()
                    elif size == 8 and memcmp(at, b"__CRC32#", 8) == 0:
                        continue
                    elif size == 4 and (
                        (has_keys and memcmp(at, b"KEYS", 4) == 0)
                        or (tags is not None and memcmp(at, b"TAGS", 4) == 0)
                    ):
                        self.culprit = <object>name
                        return GIVEN_TWICE
                problem = self.add_property(<object>name, <object>value)
        if append_crc:
            self.properties_size += CRC_PROPERTY_SIZE
        if problem == NO_PROBLEM and self.properties_size > PROPERTIES_SIZE_MAX:
            self.culprit = self.properties_size
            return TOO_LONG
        return problem

    cdef void write_properties(self, uint8_t* at) noexcept nogil:
        cdef Py_ssize_t index
        for index in range(self.count):
            memcpy(at, self.pieces[index].at, self.pieces[index].size)
            at += self.pieces[index].size

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
