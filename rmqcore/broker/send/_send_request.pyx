"""The header of a send, read in one native call: numbers as such, properties looked over once."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t
from libc.string cimport memchr, memcmp, memcpy, strlen
from posix.strings cimport strncasecmp

from rmqcore.message import RETRY_PREFIX as _RETRY_PREFIX
from rmqcore.remoting import RequestCode
from rmqcore.remoting.send_header import SEND_LETTERS as _SEND_LETTERS

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    bint PyUnicode_IS_ASCII(object text)

cdef enum:
    NAME_END = 1        # behind a property's name
    VALUE_END = 2       # behind its value
    MAX_DIGITS = 18


cdef tuple both_names(str name):
    """A header field's name in request 10 (SEND_MESSAGE), and in request 310 (SEND_MESSAGE_V2)."""
    return name, _SEND_LETTERS[name]


cdef tuple GROUP = both_names("producerGroup")
cdef tuple TOPIC = both_names("topic")
cdef tuple DEFAULT_TOPIC = both_names("defaultTopic")
cdef tuple DEFAULT_QUEUES = both_names("defaultTopicQueueNums")
cdef tuple QUEUE_ID = both_names("queueId")
cdef tuple SYS_FLAG = both_names("sysFlag")
cdef tuple BORN = both_names("bornTimestamp")
cdef tuple FLAG = both_names("flag")
cdef tuple PROPERTIES = both_names("properties")
cdef tuple RECONSUMED = both_names("reconsumeTimes")
cdef tuple RECONSUME_MAX = both_names("maxReconsumeTimes")
cdef tuple BATCH = both_names("batch")
cdef dict LONG_NAMES = {letter: name for name, letter in _SEND_LETTERS.items()}
cdef int SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)


cdef object under_long_names(object request):
    """The request with long names, for the words of a refusal and for what is no digit."""
    fields = request.ext_fields
    if "b" in fields:
        request.ext_fields = {LONG_NAMES.get(name, name): fields[name] for name in fields}
    return request


cdef str text_of(object request, dict fields, tuple names, int kind):
    found = fields.get(names[kind])
    return under_long_names(request).text(names[0]) if found is None else found


cdef int64_t number_of(
    object request, dict fields, tuple names, int kind, int64_t default, bint required
) except? -1:
    cdef Py_ssize_t size, k
    cdef int64_t number = 0
    cdef const char* text
    found = fields.get(names[kind])
    if found is None and not required:
        return default
    if found is not None and PyUnicode_IS_ASCII(found):
        text = PyUnicode_AsUTF8AndSize(found, &size)
        for k in range(size):
            if not 48 <= text[k] <= 57 or k >= MAX_DIGITS:
                break
            number = number * 10 + text[k] - 48
        else:
            if size > 0:
                return number
    return under_long_names(request).number(names[0])


cdef inline bint is_name(const char* name, Py_ssize_t size, const char* wanted) noexcept nogil:
    return <size_t>size == strlen(wanted) and memcmp(name, wanted, size) == 0


cdef bint asks(const char* name, Py_ssize_t size) noexcept nogil:
    """Tell whether a property asks the broker to do something else than to store the message."""
    if size < 5:
        return False
    if name[0] == 84 or name[0] == 73:
        return (
            memcmp(name, b"TRAN_", 5) == 0 and is_name(name, size, b"TRAN_MSG")
            or (size > 6 and memcmp(name, b"TIMER_", 6) == 0)
            or (size > 6 and memcmp(name, b"INNER_", 6) == 0)
        )
    return (
        is_name(name, size, b"DELAY")
        or is_name(name, size, b"POP_CK")
        or is_name(name, size, b"_SYS_MSG_PRIORITY_")
    )


cdef Properties look_over(const char* at, Py_ssize_t size) noexcept nogil:
    """One walk over the properties."""
    cdef Properties found
    cdef Py_ssize_t name_size, value_size
    cdef const char* end = at + size
    cdef const char* stop
    cdef const char* name_end
    found.plain = found.waits = True
    found.ordered = False
    found.unique_key = NULL
    found.unique_key_size = 0
    while at < end:
        stop = <const char*>memchr(at, VALUE_END, end - at)
        if stop == NULL:
            stop = end
        name_end = <const char*>memchr(at, NAME_END, stop - at)
        if name_end != NULL:
            name_size = name_end - at
            value_size = stop - name_end - 1
            if asks(at, name_size):
                found.plain = False
            elif is_name(at, name_size, b"WAIT"):
                found.waits = value_size < 5 or strncasecmp(name_end + 1, b"false", 5) != 0
            elif is_name(at, name_size, b"__SHARDINGKEY"):
                found.ordered = True
            elif (
                found.unique_key == NULL
                and value_size > 0
                and is_name(at, name_size, b"UNIQ_KEY")
            ):
                found.unique_key = name_end + 1
                found.unique_key_size = value_size
        at = stop + 1
    return found


cdef class SendRequest:
    """The header of a send, under long names whatever it came with.

    Attributes:
        group, topic: the producer's group; where the message goes.
        default_topic, default_queue_count: what a topic is made after that there is not.
        queue_id, sys_flag, born_timestamp_ms, flag, reconsume_times: as the client says.
        max_reconsume_times: None where it says nothing.
        properties_text: the properties: ``name U+0001 value U+0002``, again and again.
        batch: whether the body is an encoded batch.
        plain: whether the message is stored as it came: nothing in it asks the broker to act.
        waits: whether the producer waits for what the store promises. Its property WAIT.
        ordered: whether it has the property of an ordered message.
        unique_key: the id that the producer has given the message; None without.
    """

    cdef readonly str group
    cdef readonly str topic
    cdef readonly str default_topic
    cdef readonly str properties_text
    cdef readonly str unique_key
    cdef readonly object max_reconsume_times
    cdef readonly int64_t default_queue_count
    cdef readonly int64_t queue_id
    cdef readonly int64_t sys_flag
    cdef readonly int64_t born_timestamp_ms
    cdef readonly int64_t flag
    cdef readonly int64_t reconsume_times
    cdef readonly bint batch
    cdef readonly bint plain
    cdef readonly bint waits
    cdef readonly bint ordered

    def __init__(self, request):
        """Read the header of request 10, 310 or 320.

        Raises:
            RequestRefusedError: a field is missing or no number; answers with code 1.
        """
        cdef dict fields = request.ext_fields
        cdef int kind = "b" in fields
        self.group = text_of(request, fields, GROUP, kind)
        self.topic = text_of(request, fields, TOPIC, kind)
        self.default_topic = fields.get(DEFAULT_TOPIC[kind], "")
        self.default_queue_count = number_of(request, fields, DEFAULT_QUEUES, kind, 0, False)
        self.queue_id = number_of(request, fields, QUEUE_ID, kind, 0, True)
        self.sys_flag = number_of(request, fields, SYS_FLAG, kind, 0, True)
        self.born_timestamp_ms = number_of(request, fields, BORN, kind, 0, True)
        self.flag = number_of(request, fields, FLAG, kind, 0, True)
        self.properties_text = fields.get(PROPERTIES[kind], "")
        self.reconsume_times = number_of(request, fields, RECONSUMED, kind, 0, False)
        if RECONSUME_MAX[kind] in fields:
            self.max_reconsume_times = number_of(request, fields, RECONSUME_MAX, kind, 0, True)
        self.batch = (
            request.code == SEND_BATCH or fields.get(BATCH[kind], "false").lower() == "true"
        )
        self._look_over()

    cdef int _look_over(self) except -1:
        """Note what the properties say."""
        cdef Py_ssize_t size
        cdef const char* at
        cdef bytes kept
        cdef Properties found
        try:
            at = PyUnicode_AsUTF8AndSize(self.properties_text, &size)
        except UnicodeEncodeError:
            kept = self.properties_text.encode("utf-8", "replace")
            self.properties_text = kept.decode()
            at = PyUnicode_AsUTF8AndSize(self.properties_text, &size)
        found = look_over(at, size)
        self.plain = found.plain and not self.topic.startswith(_RETRY_PREFIX)
        self.waits, self.ordered = found.waits, found.ordered
        if found.unique_key != NULL:
            self.unique_key = PyUnicode_DecodeUTF8(
                found.unique_key, found.unique_key_size, NULL
            )
        return 0

    def stored_properties(self, bytes own, str unique_key):
        """The properties as they are stored; bytes.

        Args:
            own: the broker's own, behind the message's.
            unique_key: put in front where the message has none.
        """
        cdef Py_ssize_t size, whole
        cdef const char* text = PyUnicode_AsUTF8AndSize(self.properties_text, &size)
        cdef bytes front = b""
        cdef bytes stored
        cdef char* to
        cdef bint ended = size > 0 and text[size - 1] == VALUE_END
        if self.unique_key is None:
            front = b"UNIQ_KEY\x01" + unique_key.encode() + b"\x02"
        whole = PyBytes_GET_SIZE(front) + size + (not ended) + PyBytes_GET_SIZE(own)
        stored = PyBytes_FromStringAndSize(NULL, whole)
        to = PyBytes_AS_STRING(stored)
        memcpy(to, PyBytes_AS_STRING(front), PyBytes_GET_SIZE(front))
        to += PyBytes_GET_SIZE(front)
        memcpy(to, text, size)
        to += size
        if not ended:
            to[0] = VALUE_END
            to += 1
        memcpy(to, PyBytes_AS_STRING(own), PyBytes_GET_SIZE(own))
        return stored
