"""The rows of a table as parts of messages: each looked at once, without the GIL.

`TableRows` finds the columns of a message in a table, checks the values of some rows, column by
column, and remembers where they lie; `_encode_columns` measures and writes the records.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, int32_t, int64_t
from libc.string cimport memcmp, memcpy, memset

from rmqcore.native.columns._row_in cimport *
from rmqcore.native.columns._source cimport (
    DAMAGED, MISSING, NULL_VALUE, VALUE, Found, Source, has_pair, has_value, items_at, number_at,
    text_at, texts_at,
)
from rmqcore.native.columns._table_in cimport (
    AS_BYTES, AS_KEYS, AS_NUMBER, AS_PAIRS, AS_TEXT, AS_TIME, MILLISECONDS, SECONDS, Shape,
    TableIn, to_ms,
)
from rmqcore.native.format._bytes cimport same_text
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
        memset(&self.strip, 0, sizeof(Strip))
        for index in range(STRIP_SIZE):
            # what rows have whose columns are missing; no look changes it then
            self.strip.born_host_size[index] = HOST_V4_SIZE
            memcpy(self.strip.born_host[index], self.default_host, HOST_V4_SIZE)
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

    cdef int look_at(self, int64_t first, int32_t count, bint checks) noexcept nogil:
        """Find the parts of some rows, for `strip`; `checks`: look at each value, the first time.

        GOOD, or what is wrong with one of the rows, and in `column` where.
        """
        cdef int32_t row
        if self.rows.validity != NULL:
            for row in range(count):
                if not has_value(&self.rows, first + row):
                    return self.wrong(IN_BODY, NO_VALUE)
        # GOOD is 0: the first problem ends the looking
        return (
            (self.find_slots(first, count) if checks else GOOD)
            or self.find_numbers(first, count, IN_FLAG, self.strip.flag)
            or self.find_numbers(first, count, IN_RECONSUME_TIMES, self.strip.reconsume_times)
            or self.find_flags(first, count)
            or self.find_bodies(first, count)
            or self.find_births(first, count)
            or self.find_properties(first, count, checks)
        )

    cdef int find_numbers(
        self, int64_t first, int32_t count, int column, int32_t* numbers
    ) noexcept nogil:
        cdef const Source* source = &self.sources[column]
        cdef int64_t number
        cdef int32_t row
        cdef Found found
        for row in range(count if source.kind != MISSING else 0):
            number = 0
            found = number_at(source, first + row, &number)
            if found == DAMAGED:
                return self.wrong(column, DAMAGED_VALUE)
            if not INT32_MIN <= number <= INT32_MAX:
                return self.wrong(column, OUT_OF_RANGE)
            numbers[row] = <int32_t>number
        return GOOD

    cdef int find_flags(self, int64_t first, int32_t count) noexcept nogil:
        cdef int32_t* flags = self.strip.sys_flag
        cdef int32_t row
        cdef int problem = self.find_numbers(first, count, IN_SYS_FLAG, flags)
        if problem != GOOD or self.sources[IN_SYS_FLAG].kind == MISSING:
            return problem
        for row in range(count):
            if flags[row] & INNER_FLAGS:
                return self.wrong(IN_SYS_FLAG, IS_INNER_BATCH)
            if flags[row] & TRANSACTION_MASK not in (0, TRANSACTION_COMMIT):
                return self.wrong(IN_SYS_FLAG, NOT_COMMITTED)
            flags[row] &= BODY_FLAGS
        return GOOD

    cdef int find_slots(self, int64_t first, int32_t count) noexcept nogil:
        """Topics and queue ids, as the numbers of both together."""
        cdef const Source* source = &self.sources[IN_QUEUE_ID]
        cdef int64_t queue_id
        cdef int32_t row, topic = 0
        cdef Found found
        cdef int problem
        for row in range(count):
            problem = self.find_topic(first + row, &topic)
            if problem != GOOD:
                return problem
            found = number_at(source, first + row, &queue_id)
            if found == DAMAGED:
                return self.wrong(IN_QUEUE_ID, DAMAGED_VALUE)
            if found == NULL_VALUE:
                # a division takes as long as the rest of the row's numbers
                queue_id = self.row_count + first + row
                queue_id = 0 if self.queue_count == 1 else queue_id % self.queue_count
            elif not 0 <= queue_id <= INT32_MAX:
                return self.wrong(IN_QUEUE_ID, OUT_OF_RANGE)
            self.strip.slot[row] = rmq_slot_of(&self.slots, topic, <int32_t>queue_id)
            if self.strip.slot[row] < 0:
                return OUT_OF_MEMORY
        return GOOD

    cdef int find_topic(self, int64_t row, int32_t* topic) noexcept nogil:
        cdef rmq_topic* last
        cdef Slice name
        cdef Found found = text_at(&self.sources[IN_TOPIC], row, &name)
        if found == DAMAGED:
            return self.wrong(IN_TOPIC, DAMAGED_VALUE)
        if found == NULL_VALUE:
            if self.topic.at == NULL:
                return self.wrong(IN_TOPIC, NO_VALUE)
            name = self.topic
        if self.slots.last_topic >= 0:
            last = &self.slots.topics[self.slots.last_topic]
            if last.size == name.size and same_text(last.name, name.at, name.size):
                topic[0] = self.slots.last_topic
                return GOOD
        topic[0] = rmq_topic_find(&self.slots, name.at, name.size)
        if topic[0] < 0:
            if not is_topic(&name):
                return self.wrong(IN_TOPIC, NO_TOPIC_NAME)
            topic[0] = rmq_topic_add(&self.slots, name.at, name.size)
            if topic[0] < 0:
                return OUT_OF_MEMORY
        self.slots.last_topic = topic[0]
        return GOOD

    cdef int find_bodies(self, int64_t first, int32_t count) noexcept nogil:
        cdef Slice* bodies = self.strip.body
        cdef int32_t row
        if not texts_at(&self.sources[IN_BODY], first, count, bodies):
            return self.wrong(IN_BODY, DAMAGED_VALUE)
        for row in range(count):
            if bodies[row].at == NULL:
                bodies[row].at = <bytes_t><const char*>b""
            if bodies[row].size > self.body_max:
                return self.wrong(IN_BODY, BODY_TOO_LONG)
        return GOOD

    cdef int find_births(self, int64_t first, int32_t count) noexcept nogil:
        """Times and hosts of birth."""
        cdef const Source* source = &self.sources[IN_BORN_TIMESTAMP]
        cdef const Source* hosts = &self.sources[IN_BORN_HOST]
        cdef int64_t time
        cdef int32_t row
        cdef Slice text
        cdef Found found
        for row in range(count if source.kind != MISSING else 0):
            time = 0
            if number_at(source, first + row, &time) == DAMAGED:
                return self.wrong(IN_BORN_TIMESTAMP, DAMAGED_VALUE)
            if self.unit == SECONDS and (time > SECONDS_MAX or time < -SECONDS_MAX):
                return self.wrong(IN_BORN_TIMESTAMP, NO_TIME)
            self.strip.born_timestamp[row] = to_ms(time, self.unit)
        for row in range(count if hosts.kind != MISSING else 0):
            found = text_at(hosts, first + row, &text)
            if found == DAMAGED:
                return self.wrong(IN_BORN_HOST, DAMAGED_VALUE)
            if found == NULL_VALUE:
                self.strip.born_host_size[row] = HOST_V4_SIZE
                memcpy(self.strip.born_host[row], self.default_host, HOST_V4_SIZE)
            elif not self.find_host(row, &text):
                return self.wrong(IN_BORN_HOST, NO_HOST)
        return GOOD

    cdef bint find_host(self, int32_t row, const Slice* text) noexcept nogil:
        # producers are few: mostly it is the host of the row before
        if text.size != self.host_text_size or text.size == 0 or memcmp(
            text.at, self.host_text, text.size
        ) != 0:
            self.host_size, self.host_text_size = parse_host(text, self.host), 0
            if self.host_size == 0:
                return False
            if text.size <= HOST_TEXT_MAX:
                memcpy(self.host_text, text.at, text.size)
                self.host_text_size = text.size
        self.strip.born_host_size[row] = self.host_size
        memcpy(self.strip.born_host[row], self.host, HOST_V6_SIZE)
        return True

    # ---- properties

    cdef int find_properties(self, int64_t first, int32_t count, bint checks) noexcept nogil:
        """Find the properties of rows, and measure them."""
        cdef int64_t sizes[STRIP_SIZE]
        cdef int32_t row
        cdef int problem
        for row in range(count):
            sizes[row] = CRC_PROPERTY_SIZE if self.append_crc else 0
        problem = (
            self.find_keys(first, count, checks, sizes)
            or self.find_texts(first, count, IN_TAGS, checks, sizes)
            or self.find_texts(first, count, IN_UNIQUE_KEY, checks, sizes)
        )
        if problem != GOOD:
            return problem
        for row in range(count if self.unique_prefix.size > 0 else 0):
            self.strip.own_unique_key[row] = self.strip.unique_key[row].at == NULL
        if self.sources[IN_PROPERTIES].kind != MISSING:
            for row in range(count):
                problem = self.find_pairs(first, row, checks, &sizes[row])
                if problem != GOOD:
                    return problem
        for row in range(count):
            if self.strip.own_unique_key[row]:
                sizes[row] += 10 + 2 * UNIQUE_PREFIX_SIZE
            if sizes[row] > PROPERTIES_SIZE_MAX:
                return self.wrong(IN_PROPERTIES, PROPERTIES_TOO_LONG)
            self.strip.properties_size[row] = <int32_t>sizes[row]
        return GOOD

    cdef int find_texts(
        self, int64_t first, int32_t count, int column, bint checks, int64_t* sizes
    ) noexcept nogil:
        """A column of texts that are properties; `sizes` grow by what they take."""
        cdef Slice* texts = self.strip.keys
        # its name and two separators
        cdef int32_t row, more = 6
        cdef RowProblem problem
        if column == IN_TAGS:
            texts = self.strip.tags
        elif column == IN_UNIQUE_KEY:
            texts, more = self.strip.unique_key, 10
        if not texts_at(&self.sources[column], first, count, texts):
            return self.wrong(column, DAMAGED_VALUE)
        for row in range(count):
            if texts[row].at == NULL:
                continue
            sizes[row] += more + texts[row].size
            problem = text_problem(&texts[row], False) if checks else GOOD
            if problem != GOOD:
                return self.wrong(column, problem)
        return GOOD

    cdef int find_keys(
        self, int64_t first, int32_t count, bint checks, int64_t* sizes
    ) noexcept nogil:
        cdef const Source* source = &self.sources[IN_KEYS]
        cdef int32_t row
        cdef int problem
        if source.first == NULL:
            return self.find_texts(first, count, IN_KEYS, checks, sizes)
        for row in range(count):
            self.strip.keys[row].at = NULL
            problem = self.find_listed_keys(first, row, checks, &sizes[row])
            if problem != GOOD:
                return problem
        return GOOD

    cdef int find_listed_keys(
        self, int64_t first, int32_t row, bint checks, int64_t* size
    ) noexcept nogil:
        cdef const Source* source = &self.sources[IN_KEYS]
        cdef int64_t* start = &self.strip.first_key[row]
        cdef int64_t* stop = &self.strip.stop_key[row]
        cdef Slice key
        cdef RowProblem problem
        cdef int64_t item, without = size[0]
        start[0] = stop[0] = 0
        if items_at(source, first + row, start, stop) == DAMAGED:
            return self.wrong(IN_KEYS, DAMAGED_VALUE)
        if start[0] < stop[0]:
            size[0] += 5
        for item in range(start[0], stop[0]):
            if text_at(source.first, item, &key) != VALUE:
                return self.wrong(IN_KEYS, NO_VALUE)
            problem = text_problem(&key, True) if checks else GOOD
            if problem != GOOD:
                return self.wrong(IN_KEYS, problem)
            size[0] += <int64_t>key.size + 1
        self.strip.keys_size[row] = size[0] - without
        return GOOD

    cdef bint is_given(self, int32_t row, const Slice* name) noexcept nogil:
        """True for a property that a column of its own says, or that the owner writes."""
        if named(name, b"KEYS", 4):
            return (
                self.strip.keys[row].at != NULL
                or self.strip.first_key[row] < self.strip.stop_key[row]
            )
        if named(name, b"TAGS", 4):
            return self.strip.tags[row].at != NULL
        if named(name, b"UNIQ_KEY", 8):
            return self.strip.unique_key[row].at != NULL
        return is_dropped(name)

    cdef int find_pairs(
        self, int64_t first, int32_t row, bint checks, int64_t* size
    ) noexcept nogil:
        """The map of a row."""
        cdef const Source* source = &self.sources[IN_PROPERTIES]
        cdef int64_t* start = &self.strip.first_pair[row]
        cdef int64_t* stop = &self.strip.stop_pair[row]
        cdef Slice name, value
        cdef RowProblem problem
        cdef int64_t item
        cdef TimerWord word
        cdef bint timed = False, had_timer = False
        start[0] = stop[0] = 0
        if items_at(source, first + row, start, stop) == DAMAGED:
            return self.wrong(IN_PROPERTIES, DAMAGED_VALUE)
        for item in range(start[0], stop[0]):
            if not has_pair(source, item) or text_at(source.first, item, &name) != VALUE or text_at(
                source.second, item, &value
            ) != VALUE:
                return self.wrong(IN_PROPERTIES, NO_VALUE)
            if self.is_given(row, &name):
                continue
            if named(&name, b"UNIQ_KEY", 8):
                self.strip.own_unique_key[row] = False
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
        if timed and not had_timer and not self.is_timers(self.strip.slot[row]):
            return self.wrong(IN_PROPERTIES, ASKS_TIMER)
        return GOOD

    cdef bint is_timers(self, int32_t slot) noexcept nogil:
        """True for a queue of the timer wheel itself, in a copy."""
        cdef const rmq_topic* topic = &self.slots.topics[self.slots.slots[slot].topic]
        cdef Slice name
        name.at, name.size = topic.name, topic.size
        return named(&name, b"rmq_sys_wheel_timer", 19)


cdef object unknown_column(str name):
    import difflib

    near = difflib.get_close_matches(name, WRITTEN, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(WRITTEN)}"
    return ArgumentError(f"column {name}", ..., f"is none of a message{hint}")
