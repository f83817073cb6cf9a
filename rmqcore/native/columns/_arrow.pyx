"""Record batches that any Arrow library imports without a copy, and streams of them.

Speaks the Arrow PyCapsule interface natively, so pyarrow, pandas and polars are needed only where
a caller asks for their objects. Knows nothing of records; `_columns` fills the batches.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EIO, ENOMEM
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset
cimport cython

_WIDTHS = {"i": ("int32", 4), "l": ("int64", 8), "tsu:UTC": ("int64", 8)}


cdef void release_schema_capsule(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, "arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void release_array_capsule(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, "arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)


cdef void release_stream_capsule(object capsule) noexcept:
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>PyCapsule_GetPointer(
        capsule, "arrow_array_stream"
    )
    if stream.release != NULL:
        stream.release(stream)
    free(stream)


cdef ColumnBatch new_batch(rmq_column* columns, int count, int64_t rows, rmq_blocks* blocks):
    """A batch of filled columns; it takes the reference to `blocks`, which own `columns`, too."""
    cdef ColumnBatch batch = ColumnBatch.__new__(ColumnBatch)
    batch.blocks = blocks
    memset(&batch.table, 0, sizeof(rmq_column))
    batch.table.name = b""
    batch.table.format = b"+s"
    batch.table.buffer_count = 1
    batch.table.length = rows
    batch.table.child_count = count
    batch.table.children = columns
    return batch


@cython.final
cdef class ColumnBatch:
    """Rows of a log as columns, in log order.

    Imported by ``pyarrow.record_batch(batch)``, ``polars.DataFrame(batch)`` and every other
    library that speaks the Arrow PyCapsule interface. The memory lives as long as any importer.
    """

    def __init__(self, *args, **settings):
        raise TypeError("batches come from a ColumnDecoder")

    def __dealloc__(self):
        if self.blocks != NULL:
            rmq_blocks_drop(self.blocks)

    def __len__(self):
        return self.table.length

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.table.length

    @property
    def names(self) -> tuple:
        """Names of the columns, in order."""
        return tuple(
            self.table.children[index].name.decode() for index in range(self.table.child_count)
        )

    cdef const rmq_column* column_named(self, str name) except NULL:
        cdef int index
        cdef bytes wanted = name.encode()
        for index in range(self.table.child_count):
            if self.table.children[index].name == wanted:
                return &self.table.children[index]
        raise KeyError(f"{name!r}: this batch has {', '.join(self.names)}")

    def numbers(self, str name not None):
        """A column of whole numbers as a numpy array that shares the batch's memory.

        Args:
            name: an integer or time column; times are microseconds, a missing one reads as 0.
        """
        import numpy as np

        cdef const rmq_column* column = self.column_named(name)
        kind = _WIDTHS.get(column.format.decode())
        if kind is None:
            raise KeyError(f"{name!r} is no column of whole numbers")
        part = BatchMemory(self)
        part.at = column.buffers[1]
        part.size = column.length * <int64_t>kind[1]
        return np.frombuffer(part, kind[0])

    def __arrow_c_schema__(self) -> object:
        cdef ArrowSchema* schema = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
        if schema == NULL or rmq_export_schema(schema, &self.table) != 0:
            free(schema)
            raise MemoryError
        return PyCapsule_New(schema, "arrow_schema", release_schema_capsule)

    def __arrow_c_array__(self, requested_schema=None) -> tuple:
        cdef ArrowArray* array = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        if array == NULL or rmq_export_array(array, &self.table, self.blocks) != 0:
            free(array)
            raise MemoryError
        exported = PyCapsule_New(array, "arrow_array", release_array_capsule)
        return self.__arrow_c_schema__(), exported

    def __arrow_c_stream__(self, requested_schema=None) -> object:
        return ColumnBatches(self, lambda: iter((self,))).__arrow_c_stream__()

    def to_arrow(self) -> object:
        """The batch as a ``pyarrow.RecordBatch``, without a copy; needs pyarrow."""
        import pyarrow
        return pyarrow.record_batch(self)

    def __repr__(self):
        return f"ColumnBatch({self.num_rows} rows: {', '.join(self.names)})"


@cython.final
cdef class BatchMemory:
    """The bytes of one column; the batch lives as long as a view of this does."""
    cdef ColumnBatch batch
    cdef const void* at
    cdef Py_ssize_t size

    def __cinit__(self, ColumnBatch batch):
        self.batch = batch

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, <void*>self.at, self.size, 1, flags)


@cython.final
cdef class ColumnBatches:
    """A stream of batches of one schema, read as it is consumed, and anew each time.

    Iterate over it, or hand it to anything that takes an Arrow stream:
    ``pyarrow.table(batches)``, ``polars.DataFrame(batches)``, DuckDB.

    Args:
        empty: a batch that shows the schema.
        read: begins to read; returns an iterator of `ColumnBatch`.
    """
    cdef ColumnBatch empty
    cdef object read

    def __init__(self, ColumnBatch empty not None, read):
        self.empty = empty
        self.read = read

    def __iter__(self):
        return iter(self.read())

    @property
    def names(self) -> tuple:
        """Names of the columns, in order."""
        return self.empty.names

    def __arrow_c_schema__(self) -> object:
        return self.empty.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema=None) -> object:
        reading = BatchReading(self.empty, iter(self))
        cdef ArrowArrayStream* stream = <ArrowArrayStream*>calloc(1, sizeof(ArrowArrayStream))
        if stream == NULL:
            raise MemoryError
        stream.get_schema = stream_schema
        stream.get_next = stream_next
        stream.get_last_error = stream_error
        stream.release = stream_release
        stream.private_data = <void*>reading
        Py_INCREF(reading)
        return PyCapsule_New(stream, "arrow_array_stream", release_stream_capsule)

    def to_arrow(self) -> object:
        """All of it as a ``pyarrow.Table``; needs pyarrow."""
        import pyarrow
        return pyarrow.table(self)

    def to_pandas(self) -> object:
        """All of it as a ``pandas.DataFrame``; needs pandas and pyarrow."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> object:
        """All of it as a ``polars.DataFrame``; needs polars."""
        import polars
        return polars.DataFrame(self)


@cython.final
cdef class BatchReading:
    """One stream of batches, as far as it has been read."""
    cdef ColumnBatch empty
    cdef object source
    cdef bytes error

    def __cinit__(self, ColumnBatch empty, source):
        self.empty = empty
        self.source = source


cdef bytes described(object error):
    """An exception as text for a caller in C; never raises: the stream would seem to end there."""
    try:
        # a path may hold bytes that are no text
        return f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace")
    except BaseException:
        return b"the source of the batches failed"


cdef int stream_schema(ArrowArrayStream* stream, ArrowSchema* into) noexcept with gil:
    cdef BatchReading reading = <BatchReading>stream.private_data
    return ENOMEM if rmq_export_schema(into, &reading.empty.table) else 0


cdef int stream_next(ArrowArrayStream* stream, ArrowArray* into) noexcept with gil:
    cdef BatchReading reading = <BatchReading>stream.private_data
    cdef ColumnBatch batch
    memset(into, 0, sizeof(ArrowArray))
    if reading.error is not None:
        # a generator that raised looks exhausted: asked again, it must raise again, not just end
        return EIO
    try:
        batch = next(reading.source, None)
    except BaseException as error:
        reading.error = described(error)
        return EIO
    if batch is None:
        return 0
    return ENOMEM if rmq_export_array(into, &batch.table, batch.blocks) else 0


cdef const char* stream_error(ArrowArrayStream* stream) noexcept with gil:
    cdef BatchReading reading = <BatchReading>stream.private_data
    return <const char*>NULL if reading.error is None else <const char*>reading.error


cdef void stream_release(ArrowArrayStream* stream) noexcept with gil:
    Py_DECREF(<BatchReading>stream.private_data)
    stream.release = NULL
