"""Tables of other libraries, by the Arrow PyCapsule interface: batch after batch, without a copy.

Anything with ``__arrow_c_array__`` or ``__arrow_c_stream__`` is taken: what pyarrow, pandas, Polars
and DuckDB give. Knows which Arrow types can be text, bytes, numbers, times, keys and properties,
and nothing of messages; `_encode_columns` makes records of what is bound here.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset, strcmp
cimport cython

from rmqcore.native.columns._arrow cimport ArrowArray, ArrowArrayStream, ArrowSchema
from rmqcore.native.columns._source cimport (
    FIXED, LARGE_LIST, LARGE_TEXT, LIST, MISSING, NUMBERS, TEXT, VIEWS, Source,
)
from rmqcore.native.format._record cimport bytes_t

from rmqcore.errors import ArgumentError, RmqCoreError

# Sources that one batch may need: a dictionary, items and pairs for each column.
cdef enum:
    POOL_SIZE = 128

# Arrow's letter of a number, its bytes, and whether it has no sign.
_NUMBERS = {
    "c": (1, False), "C": (1, True), "s": (2, False), "S": (2, True), "i": (4, False),
    "I": (4, True), "l": (8, False), "L": (8, True),
}
_UNITS = {"s": SECONDS, "m": MILLISECONDS, "u": MICROSECONDS, "n": NANOSECONDS}
_TEXTS = {"u": TEXT, "U": LARGE_TEXT, "vu": VIEWS}
_BYTES = {"z": TEXT, "Z": LARGE_TEXT, "vz": VIEWS, **_TEXTS}
_RULES = {
    AS_TEXT: "text (utf8, large_utf8, utf8_view), or a dictionary of it",
    AS_BYTES: "bytes or text (binary, utf8, their large and view forms, fixed_size_binary)",
    AS_NUMBER: "whole numbers",
    AS_TIME: "a timestamp with a time zone, of any unit",
    AS_KEYS: "text, several keys separated by spaces, or a list of text",
    AS_PAIRS: "a map of text to text, or a list of structures of two texts",
}


@cython.final
cdef class BatchIn:
    """One batch of a table; its columns live as long as this."""

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)

    def __len__(self):
        return self.array.length


@cython.final
cdef class TableIn:
    """A table that is being read: iterate over it for its batches.

    Args:
        table: has ``__arrow_c_array__``, then it is one batch, or ``__arrow_c_stream__``.

    Attributes:
        names: of the columns, in order.

    Raises:
        ArgumentError: it has neither, or its rows are no structures.
        RmqCoreError: its maker cannot begin to read it.
    """

    def __cinit__(self, table):
        cdef ArrowArray* array
        self.pool = <Source*>calloc(POOL_SIZE, sizeof(Source))
        if self.pool == NULL:
            raise MemoryError
        if hasattr(table, "__arrow_c_array__"):
            schema, capsule = table.__arrow_c_array__()
            self.take_schema(<ArrowSchema*>PyCapsule_GetPointer(schema, "arrow_schema"))
            array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
            self.only = array[0]
            array.release = NULL
        elif hasattr(table, "__arrow_c_stream__"):
            self.take_stream(table.__arrow_c_stream__())
        else:
            raise ArgumentError(
                "table", table, "a table or a batch of an Arrow library (with __arrow_c_stream__ "
                "or __arrow_c_array__), such as pyarrow, pandas, Polars and DuckDB give"
            )
        if strcmp(self.schema.format, b"+s") != 0:
            raise ArgumentError("table", table, "rows with named columns")
        self.names = tuple(
            [text_of(self.schema.children[index].name) for index in range(self.schema.n_children)]
        )

    def __dealloc__(self):
        if self.only.release != NULL:
            self.only.release(&self.only)
        if self.stream.release != NULL:
            self.stream.release(&self.stream)
        if self.schema.release != NULL:
            self.schema.release(&self.schema)
        free(self.pool)

    cdef int take_schema(self, ArrowSchema* schema) except -1:
        self.schema = schema[0]
        schema.release = NULL
        return 0

    cdef int take_stream(self, object capsule) except -1:
        cdef ArrowArrayStream* stream = <ArrowArrayStream*>PyCapsule_GetPointer(
            capsule, "arrow_array_stream"
        )
        cdef ArrowSchema schema
        cdef int code
        self.stream = stream[0]
        stream.release = NULL
        memset(&schema, 0, sizeof(schema))
        with nogil:
            code = self.stream.get_schema(&self.stream, &schema)
        if code != 0:
            raise self.failure(code)
        return self.take_schema(&schema)

    cdef object failure(self, int code):
        cdef const char* text = self.stream.get_last_error(&self.stream)
        said = f"error {code}" if text == NULL else (<bytes>text).decode("utf-8", "replace")
        return RmqCoreError(f"the table could not be read: {said}")

    def __iter__(self):
        return self

    def __next__(self) -> BatchIn:
        """The next batch.

        Raises:
            RmqCoreError: the table's maker failed.
        """
        cdef BatchIn batch = BatchIn.__new__(BatchIn)
        cdef int code
        if self.only.release != NULL:
            batch.array = self.only
            memset(&self.only, 0, sizeof(ArrowArray))
        elif self.stream.release != NULL:
            with nogil:
                code = self.stream.get_next(&self.stream, &batch.array)
            if code != 0:
                batch.array.release = NULL
                raise self.failure(code)
        if batch.array.release == NULL:
            raise StopIteration
        return batch

    # ---- columns

    cdef Source* new_source(self) except NULL:
        if self.pool_used == POOL_SIZE:
            raise ArgumentError("table", ..., "has columns that are nested too deeply")
        self.pool_used += 1
        return &self.pool[self.pool_used - 1]

    cdef int bind_column(
        self, Source* source, BatchIn batch, int index, Shape shape, Unit* unit
    ) except -1:
        """Let `source` read a column of a batch; the sources of its other columns stay.

        Args:
            unit: gets that of a time.

        Raises:
            ArgumentError: its type is no such column's.
        """
        cdef const ArrowArray* column
        self.bound = self.names[index]
        if batch.array.n_children != self.schema.n_children:
            raise ArgumentError("table", ..., "has a batch with fewer columns than it says")
        column = batch.array.children[index]
        if column.length < batch.array.offset + batch.array.length:
            raise ArgumentError(f"column {self.bound}", ..., "is shorter than the table")
        self.bind(source, self.schema.children[index], column, shape, unit)
        source.offset += batch.array.offset
        return 0

    cdef int bind(
        self, Source* source, const ArrowSchema* schema, const ArrowArray* array, Shape shape,
        Unit* unit
    ) except -1:
        cdef str kind = schema.format.decode()
        memset(source, 0, sizeof(Source))
        source.offset = array.offset
        source.length = array.length
        if kind == "n":
            source.kind = MISSING
            return 0
        if array.n_buffers > 0 and array.null_count != 0:
            source.validity = <bytes_t>array.buffers[0]
        if shape == AS_KEYS and kind not in ("+l", "+L"):
            shape = AS_TEXT
        if shape == AS_KEYS or shape == AS_PAIRS:
            return self.bind_items(source, schema, array, shape)
        if schema.dictionary == NULL:
            return self.bind_leaf(source, schema, array, shape, unit)
        if (
            schema.dictionary.dictionary != NULL or kind not in _NUMBERS
            or array.dictionary == NULL
        ):
            raise self.refused(schema, shape)
        # what a dictionary holds is asked for through its indices
        source.kind = NUMBERS
        source.width, source.unsigned = _NUMBERS[kind]
        source.values = <bytes_t>array.buffers[1]
        source.dictionary = self.new_source()
        return self.bind(source.dictionary, schema.dictionary, array.dictionary, shape, unit)

    cdef int bind_leaf(
        self, Source* source, const ArrowSchema* schema, const ArrowArray* array, Shape shape,
        Unit* unit
    ) except -1:
        cdef str kind = schema.format.decode()
        cdef object texts = _BYTES if shape == AS_BYTES else _TEXTS
        if shape == AS_NUMBER and kind in _NUMBERS:
            source.kind = NUMBERS
            source.width, source.unsigned = _NUMBERS[kind]
        elif shape == AS_TIME and kind[:2] == "ts" and len(kind) > 4:
            source.kind, source.width = NUMBERS, 8
            unit[0] = _UNITS[kind[2:3]]
        elif shape == AS_BYTES and kind[:2] == "w:":
            source.kind, source.width = FIXED, int(kind[2:])
        elif (shape == AS_TEXT or shape == AS_BYTES) and kind in texts and (
            kind[:1] != "v" or array.n_buffers >= 3
        ):
            source.kind = texts[kind]
        else:
            raise self.refused(schema, shape)
        source.values = <bytes_t>array.buffers[1]
        if source.kind == TEXT or source.kind == LARGE_TEXT:
            # texts without a byte need no buffer; NULL means here that there is no text
            source.data = <bytes_t>array.buffers[2]
            if source.data == NULL:
                source.data = <bytes_t><const char*>b""
            # Arrow lets a column without rows have no offsets
            if source.values == NULL:
                source.kind = MISSING
        elif source.kind == VIEWS:
            source.view_count = array.n_buffers - 3
            source.views = array.buffers + 2
            source.view_sizes = <const int64_t*>array.buffers[array.n_buffers - 1]
        return 0

    cdef int bind_items(
        self, Source* source, const ArrowSchema* schema, const ArrowArray* array, Shape shape
    ) except -1:
        cdef str kind = schema.format.decode()
        cdef const ArrowSchema* item
        cdef const ArrowArray* items
        cdef Unit none
        if schema.n_children != 1 or kind not in ("+l", "+L", "+m"):
            raise self.refused(schema, shape)
        item, items = schema.children[0], array.children[0]
        source.kind = LARGE_LIST if kind == "+L" else LIST
        source.values = <bytes_t>array.buffers[1]
        source.first = self.new_source()
        if source.values == NULL:
            source.kind = MISSING
        if shape == AS_KEYS:
            return self.bind(source.first, item, items, AS_TEXT, &none)
        if strcmp(item.format, b"+s") != 0 or item.n_children != 2:
            raise self.refused(schema, shape)
        if min(items.children[0].length, items.children[1].length) < items.offset + items.length:
            raise self.refused(schema, shape)
        source.second = self.new_source()
        self.bind(source.first, item.children[0], items.children[0], AS_TEXT, &none)
        self.bind(source.second, item.children[1], items.children[1], AS_TEXT, &none)
        if items.null_count != 0:
            source.pair_validity, source.pair_offset = <bytes_t>items.buffers[0], items.offset
        # rows of a structure begin where it says, in all its columns
        source.first.offset += items.offset
        source.second.offset += items.offset
        source.first.length = source.second.length = items.length
        return 0

    cdef object refused(self, const ArrowSchema* schema, Shape shape):
        return ArgumentError(
            f"column {self.bound}", (<bytes>schema.format).decode(), _RULES[shape]
        )


cdef str text_of(const char* text):
    """A name, which a column need not have."""
    return "" if text == NULL else (<bytes>text).decode("utf-8", "replace")
