"""The rows of a table as parts of messages: each looked at once, without the GIL.

`TableRows` finds the columns of a message in a table, checks the values of a row and remembers
where they lie; `_encode_columns` measures and writes the records.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, int32_t, int64_t
from libc.string cimport memcmp, memcpy, memset

from rmqcore.native.columns._row_in cimport *
from rmqcore.native.columns._source cimport (
    DAMAGED, MISSING, NULL_VALUE, VALUE, Found, Source, has_pair, has_value, items_at, number_at,
    text_at,
)
from rmqcore.native.columns._table_in cimport (
    AS_BYTES, AS_KEYS, AS_NUMBER, AS_PAIRS, AS_TEXT, AS_TIME, MILLISECONDS, SECONDS, Shape,
    TableIn, to_ms,
)
from rmqcore.native.format._layout cimport *
from rmqcore.native.format._properties cimport TIMER_ASKED, TIMER_DONE, TimerWord, timer_word
from rmqcore.native.format._record cimport Slice, bytes_t, named

from rmqcore.errors import ArgumentError
from rmqcore.native.columns._columns import COLUMNS as _COLUMNS
from rmqcore.native.format._host import encode_host

# Columns that become part of a message.
WRITTEN = (
    "topic", "queue_id", "body", "tags", "keys", "unique_key", "properties", "flag", "sys_flag",
    "born_timestamp", "reconsume_times", "born_host",
)
# Columns of a scan that say where a message lies: the log gives it a new place.
PLACES = tuple([name for name in _COLUMNS if name not in WRITTEN])

cdef Shape[IN_COUNT] SHAPES = [
    AS_TEXT, AS_NUMBER, AS_BYTES, AS_TEXT, AS_KEYS, AS_TEXT, AS_PAIRS, AS_NUMBER, AS_NUMBER,
    AS_TIME, AS_NUMBER, AS_TEXT,
]
# Bits of a system flag that speak of the body.
cdef int32_t BODY_FLAGS = COMPRESSED | MULTI_TAGS | COMPRESSION_MASK
cdef int32_t INNER_FLAGS = INNER_BATCH | NEED_UNWRAP
cdef int64_t SECONDS_MAX = INT64_MAX // 1000

_TOPIC_RULE = "1 to 255 letters, digits, '%', '|', '_' and '-'"
RULES = {
    NO_VALUE: "there is no value",
    EMPTY_VALUE: "a text is empty; the format cannot hold it",
    DAMAGED_VALUE: "the column contradicts itself: an offset, an index or a view is out of range",
    NOT_UTF8: "the text is no UTF-8",
    HAS_SEPARATOR: "the text contains U+0001 or U+0002, which separate properties",
    HAS_SPACE: "a key of a list contains a space, which separates keys",
    NO_TOPIC_NAME: f"a topic has {_TOPIC_RULE}",
    OUT_OF_RANGE: "the number is out of range: int32, and a queue id is 0 or more",
    IS_INNER_BATCH: "the row is an inner batch, which is not one message",
    NOT_COMMITTED: (
        "the row is of a transaction that is not committed; rows with sys_flag & 12 = 0 or 8 are "
        "messages"
    ),
    ASKS_DELAY: "DELAY asks for a delay, and nothing delays it; copy=True stores it as it is",
    ASKS_TIMER: "TIMER_DELIVER_MS, TIMER_DELAY_SEC or TIMER_DELAY_MS: no timer wheel is here",
    ASKS_LIGHT_QUEUES: (
        "INNER_MULTI_DISPATCH: rows get no numbers in light queues; put such a message by itself"
    ),
    NO_HOST: "expected a numeric address and a port: '10.1.2.3:10911' or '[2001:db8::1]:10911'",
    NO_TIME: "the time is out of range",
    PROPERTIES_TOO_LONG: f"the properties take more than {PROPERTIES_SIZE_MAX} bytes",
    CHANGED: "the table was changed while it was read",
}


cdef class TableRows:
    """The batches of one table, and the parts of a message in each row.

    Args:
        table: what `TableIn` takes.
        topic: of rows without one.
        queue_count: rows without a queue go to queues 0, 1, ... up to so many, in turn.
        unique_prefix: what the unique key of a row without one begins with; empty: it has none.
        copy: take also what asks for a delay, as it is.
        light_queues: refuse rows that name light queues.
        body_max: bytes of the longest body.
        append_crc: leave room for the CRC property.

    Raises:
        ArgumentError: a column that no message has, one twice, or none with the body or the topic.
    """

    def __cinit__(
        self, table, *, topic=None, int32_t queue_count=1, bytes unique_prefix=b"",
        bint copy=False, bint light_queues=False, int64_t body_max, bint append_crc=False,
        **others,
    ):
        self.table = TableIn(table)
        self.topic_text = None if topic is None else topic.encode()
        self.queue_count = max(1, queue_count)
        self.prefix_text = unique_prefix
        self.unique_prefix.at = <bytes_t>PyBytes_AS_STRING(unique_prefix)
        self.unique_prefix.size = <int32_t>PyBytes_GET_SIZE(unique_prefix)
        if self.unique_prefix.size not in (0, UNIQUE_PREFIX_SIZE):
            raise ValueError(f"the prefix of a unique key has {UNIQUE_PREFIX_SIZE} characters")
        self.copies, self.refuses_light_queues = copy, light_queues
        self.body_max = min(body_max, INT32_MAX - RECORD_OVERHEAD_MAX)
        self.append_crc = append_crc
        memcpy(self.default_host, PyBytes_AS_STRING(encode_host("127.0.0.1:0")), HOST_V4_SIZE)
        self.known = []
        self.slots.last_topic = RMQ_NO_SLOT
        if self.topic_text is not None:
            self.topic.at = <bytes_t>PyBytes_AS_STRING(self.topic_text)
            self.topic.size = <int32_t>min(PyBytes_GET_SIZE(self.topic_text), INT32_MAX)
            if not is_topic(&self.topic):
                raise ArgumentError("topic", topic, _TOPIC_RULE)
        self.place_columns()

    def __dealloc__(self):
        rmq_slots_free(&self.slots)

    cdef int place_columns(self) except -1:
        cdef int index
        names = self.table.names
        for name in names:
            if name not in WRITTEN and name not in PLACES and not name.startswith("__index_level_"):
                raise unknown_column(name)
            if names.count(name) > 1:
                raise ArgumentError(f"column {name}", ..., "is in the table twice")
        for index in range(IN_COUNT):
            self.place[index] = names.index(WRITTEN[index]) if WRITTEN[index] in names else -1
        if self.place[IN_BODY] < 0:
            raise ArgumentError("column body", ..., "is missing: there is nothing to store")
        if self.place[IN_TOPIC] < 0 and self.topic_text is None:
            raise ArgumentError("topic", ..., "is missing: give it as an argument or as a column")
        return 0

    @property
    def columns(self) -> tuple:
        """Names of the table's columns, in order."""
        return self.table.names

    @property
    def queues(self) -> list:
        """(topic, queue id) by number; the same list, longer."""
        cdef rmq_slot* slot
        cdef rmq_topic* topic
        while len(self.known) < self.slots.slot_count:
            slot = &self.slots.slots[len(self.known)]
            topic = &self.slots.topics[slot.topic]
            name = PyBytes_FromStringAndSize(<const char*>topic.name, topic.size).decode()
            self.known.append((name, slot.queue_id))
        return self.known

    cdef int bind(self) except -1:
        cdef int index
        self.table.pool_used = 0
        memset(self.sources, 0, sizeof(self.sources))
        memset(&self.rows, 0, sizeof(Source))
        self.unit = MILLISECONDS
        for index in range(IN_COUNT):
            if self.place[index] >= 0:
                self.table.bind_column(
                    &self.sources[index], self.batch, self.place[index], SHAPES[index],
                    &self.unit,
                )
        if self.batch.array.null_count != 0 and self.batch.array.n_buffers > 0:
            self.rows.validity = <bytes_t>self.batch.array.buffers[0]
            self.rows.offset = self.batch.array.offset
        return 0

    cdef int wrong(self, int column, int problem) noexcept nogil:
        self.column = column
        return problem

    cdef int gather(self, int64_t row, RowIn* found, bint checks) noexcept nogil:
        """Find the parts of a row; `checks`: look at each, the first time."""
        cdef int64_t number = 0
        cdef int problem
        if self.rows.validity != NULL and not has_value(&self.rows, row):
            return self.wrong(IN_BODY, NO_VALUE)
        problem = self.topic_of(row, found)
        if problem == GOOD:
            problem = self.number_of(row, IN_QUEUE_ID, 0, -1, &number)
            if number < 0:
                # a division takes as long as the rest of the row's numbers
                number = 0 if self.queue_count == 1 else (self.row_count + row) % self.queue_count
            found.queue_id = <int32_t>number
        if problem == GOOD:
            problem = self.number_of(row, IN_FLAG, INT32_MIN, 0, &number)
            found.flag = <int32_t>number
        if problem == GOOD:
            problem = self.number_of(row, IN_RECONSUME_TIMES, INT32_MIN, 0, &number)
            found.reconsume_times = <int32_t>number
        if problem == GOOD:
            problem = self.number_of(row, IN_SYS_FLAG, INT32_MIN, 0, &number)
            found.sys_flag = <int32_t>number & BODY_FLAGS
        if problem != GOOD:
            return problem
        if number & INNER_FLAGS:
            return self.wrong(IN_SYS_FLAG, IS_INNER_BATCH)
        if number & TRANSACTION_MASK and number & TRANSACTION_MASK != TRANSACTION_COMMIT:
            return self.wrong(IN_SYS_FLAG, NOT_COMMITTED)
        found.body.size = 0
        if text_at(&self.sources[IN_BODY], row, &found.body) == DAMAGED:
            return self.wrong(IN_BODY, DAMAGED_VALUE)
        if found.body.size > self.body_max:
            return self.wrong(IN_BODY, BODY_TOO_LONG)
        problem = self.born_of(row, found)
        return self.properties_of(row, found, checks) if problem == GOOD else problem

    cdef int number_of(
        self, int64_t row, int column, int64_t least, int64_t default, int64_t* number
    ) noexcept nogil:
        cdef Found found = number_at(&self.sources[column], row, number)
        if found == NULL_VALUE:
            number[0] = default
        elif found == DAMAGED:
            return self.wrong(column, DAMAGED_VALUE)
        elif not least <= number[0] <= INT32_MAX:
            return self.wrong(column, OUT_OF_RANGE)
        return GOOD

    cdef int topic_of(self, int64_t row, RowIn* found) noexcept nogil:
        cdef rmq_topic* last
        cdef Slice name
        cdef Found is_there = text_at(&self.sources[IN_TOPIC], row, &name)
        if is_there == DAMAGED:
            return self.wrong(IN_TOPIC, DAMAGED_VALUE)
        if is_there == NULL_VALUE:
            if self.topic.at == NULL:
                return self.wrong(IN_TOPIC, NO_VALUE)
            name = self.topic
        if self.slots.last_topic >= 0:
            last = &self.slots.topics[self.slots.last_topic]
            if last.size == name.size and memcmp(last.name, name.at, name.size) == 0:
                found.topic = self.slots.last_topic
                return GOOD
        found.topic = rmq_topic_find(&self.slots, name.at, name.size)
        if found.topic < 0:
            if not is_topic(&name):
                return self.wrong(IN_TOPIC, NO_TOPIC_NAME)
            found.topic = rmq_topic_add(&self.slots, name.at, name.size)
            if found.topic < 0:
                return OUT_OF_MEMORY
        self.slots.last_topic = found.topic
        return GOOD

    cdef int born_of(self, int64_t row, RowIn* found) noexcept nogil:
        """Time and host of birth; of the host the bytes are in `self.host`."""
        cdef Slice text
        cdef int64_t time = 0
        cdef Found is_there = number_at(&self.sources[IN_BORN_TIMESTAMP], row, &time)
        if is_there == DAMAGED:
            return self.wrong(IN_BORN_TIMESTAMP, DAMAGED_VALUE)
        if self.unit == SECONDS and (time > SECONDS_MAX or time < -SECONDS_MAX):
            return self.wrong(IN_BORN_TIMESTAMP, NO_TIME)
        found.born_timestamp = to_ms(time, self.unit)
        is_there = text_at(&self.sources[IN_BORN_HOST], row, &text)
        if is_there == DAMAGED:
            return self.wrong(IN_BORN_HOST, DAMAGED_VALUE)
        if is_there == NULL_VALUE:
            found.born_host_size = HOST_V4_SIZE
            self.host_text_size = 0
            memcpy(self.host, self.default_host, HOST_V4_SIZE)
            return GOOD
        # producers are few: mostly it is the host of the row before
        if text.size != self.host_text_size or text.size == 0 or memcmp(
            text.at, self.host_text, text.size
        ) != 0:
            self.host_size, self.host_text_size = parse_host(&text, self.host), 0
            if self.host_size == 0:
                return self.wrong(IN_BORN_HOST, NO_HOST)
            if text.size <= HOST_TEXT_MAX:
                memcpy(self.host_text, text.at, text.size)
                self.host_text_size = text.size
        found.born_host_size = self.host_size
        return GOOD

    # ---- properties

    cdef int properties_of(self, int64_t row, RowIn* found, bint checks) noexcept nogil:
        """Measure the properties of a row."""
        cdef int64_t size = CRC_PROPERTY_SIZE if self.append_crc else 0
        cdef int problem = self.keys_of(row, found, checks, &size)
        if problem == GOOD:
            problem = self.single(row, IN_TAGS, &found.tags, checks, 6, &size)
        if problem == GOOD:
            problem = self.single(row, IN_UNIQUE_KEY, &found.unique_key, checks, 10, &size)
        found.own_unique_key = (
            found.unique_key.at == NULL and self.unique_prefix.size > 0
        )
        if problem == GOOD:
            problem = self.pairs_of(row, found, checks, &size)
        if found.own_unique_key:
            size += 10 + 2 * UNIQUE_PREFIX_SIZE
        if problem == GOOD and size > PROPERTIES_SIZE_MAX:
            return self.wrong(IN_PROPERTIES, PROPERTIES_TOO_LONG)
        found.properties_size = <int32_t>size
        return problem

    cdef int single(
        self, int64_t row, int column, Slice* text, bint checks, int32_t more, int64_t* size
    ) noexcept nogil:
        """One text, whose name and separators take `more` bytes."""
        cdef Found is_there = text_at(&self.sources[column], row, text)
        cdef RowProblem problem
        if is_there == NULL_VALUE:
            text.at = NULL
            return GOOD
        if is_there == DAMAGED:
            return self.wrong(column, DAMAGED_VALUE)
        size[0] += more + <int64_t>text.size
        problem = text_problem(text, False) if checks else GOOD
        return GOOD if problem == GOOD else self.wrong(column, problem)

    cdef int keys_of(
        self, int64_t row, RowIn* found, bint checks, int64_t* size
    ) noexcept nogil:
        cdef const Source* source = &self.sources[IN_KEYS]
        cdef Slice key
        cdef RowProblem problem
        cdef int64_t item
        found.first_key = found.stop_key = 0
        found.keys.at = NULL
        if source.first == NULL:
            return self.single(row, IN_KEYS, &found.keys, checks, 6, size)
        if items_at(source, row, &found.first_key, &found.stop_key) == DAMAGED:
            return self.wrong(IN_KEYS, DAMAGED_VALUE)
        if found.first_key < found.stop_key:
            size[0] += 5
        for item in range(found.first_key, found.stop_key):
            if text_at(source.first, item, &key) != VALUE:
                return self.wrong(IN_KEYS, NO_VALUE)
            problem = text_problem(&key, True) if checks else GOOD
            if problem != GOOD:
                return self.wrong(IN_KEYS, problem)
            size[0] += <int64_t>key.size + 1
        return GOOD

    cdef bint is_given(self, const RowIn* found, const Slice* name) noexcept nogil:
        """True for a property that a column of its own says, or that the owner writes."""
        if named(name, b"KEYS", 4):
            return found.keys.at != NULL or found.first_key < found.stop_key
        if named(name, b"TAGS", 4):
            return found.tags.at != NULL
        if named(name, b"UNIQ_KEY", 8):
            return found.unique_key.at != NULL
        return is_dropped(name)

    cdef int pairs_of(
        self, int64_t row, RowIn* found, bint checks, int64_t* size
    ) noexcept nogil:
        cdef const Source* source = &self.sources[IN_PROPERTIES]
        cdef Slice name, value
        cdef RowProblem problem
        cdef int64_t item
        cdef TimerWord word
        cdef bint timed = False, had_timer = False
        found.first_pair = found.stop_pair = 0
        if source.kind == MISSING:
            return GOOD
        if items_at(source, row, &found.first_pair, &found.stop_pair) == DAMAGED:
            return self.wrong(IN_PROPERTIES, DAMAGED_VALUE)
        for item in range(found.first_pair, found.stop_pair):
            if not has_pair(source, item) or text_at(source.first, item, &name) != VALUE or text_at(
                source.second, item, &value
            ) != VALUE:
                return self.wrong(IN_PROPERTIES, NO_VALUE)
            if self.is_given(found, &name):
                continue
            if named(&name, b"UNIQ_KEY", 8):
                found.own_unique_key = False
            size[0] += <int64_t>name.size + value.size + 2
            if not checks:
                continue
            problem = text_problem(&name, False)
            if problem == GOOD:
                problem = text_problem(&value, False)
            if problem == GOOD and not self.copies and named(&name, b"DELAY", 5):
                problem = ASKS_DELAY
            if named(&name, b"INNER_MULTI_DISPATCH", 20):
                self.names_light_queues = True
                if self.refuses_light_queues:
                    problem = ASKS_LIGHT_QUEUES
            if problem != GOOD:
                return self.wrong(IN_PROPERTIES, problem)
            word = timer_word(&name)
            had_timer |= word == TIMER_DONE
            timed |= word == TIMER_ASKED
        if timed and not had_timer and not self.is_timers(found.topic):
            return self.wrong(IN_PROPERTIES, ASKS_TIMER)
        return GOOD

    cdef bint is_timers(self, int32_t topic) noexcept nogil:
        """True for the topic of the timer wheel itself, in a copy."""
        cdef Slice name
        name.at, name.size = self.slots.topics[topic].name, self.slots.topics[topic].size
        return named(&name, b"rmq_sys_wheel_timer", 19)


cdef object unknown_column(str name):
    import difflib

    near = difflib.get_close_matches(name, WRITTEN, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(WRITTEN)}"
    return ArgumentError(f"column {name}", ..., f"is none of a message{hint}")
