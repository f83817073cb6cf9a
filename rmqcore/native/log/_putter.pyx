"""`put` and `put_message`: the fast path of putting, one native call from arguments to receipt.

`MessagePutter` is the base class of the store that is open for writing. Its fast path checks the
arguments, writes the record, and waits for the disk (`DiskWait`). A delayed message, a full file or
a durability of its own takes the general path instead, which is Python's.
"""

from rmqcore.native.log._commit_group cimport CommitGroup
from rmqcore.native.format._arguments cimport as_i32, as_i64
from rmqcore.native.format._message cimport Message
from rmqcore.native.format._receipt cimport PutMessageResult
from rmqcore.native.format._record cimport RecordFields
from rmqcore.native.format._wire_message cimport WireMessage
from rmqcore.native.log._tail cimport LogTail
from rmqcore.native.base._world cimport read_monotonic_s

from rmqcore.arguments import keys_of
from rmqcore.errors import is_refusal
from rmqcore.native.format.named_properties import with_named
from rmqcore.status import Durability, PutMessageStatus

cdef object DISK = Durability.DISK
cdef object ZERO = 0


cdef class DiskWait:
    """What the receipt of a put waits for that asks for nothing itself, and the wait for the disk.

    Args:
        group: where callers wait for a flush.
        took: called with how long each good wait took, milliseconds.
        disk: whether the settings let puts wait for the disk.
        timeout_ms: how long a put waits for the disk.

    Attributes:
        timeout_ms: as given; may be set.
        slaves: who tells how far the slaves are that are waited for; None where none are.
        waits: whether anything is waited for.
    """

    cdef CommitGroup _group
    cdef object _took
    cdef readonly bint disk
    cdef readonly bint waits
    cdef readonly object slaves
    cdef public double timeout_ms

    def __init__(self, CommitGroup group, took, *, bint disk, double timeout_ms):
        self._group = group
        self._took = took
        self.disk = disk
        self.timeout_ms = timeout_ms
        self.wait_for(None)

    cpdef object wait_for(self, slaves):
        """Let puts wait for slaves from now on; None for none."""
        self.slaves = slaves
        self.waits = self.disk or slaves is not None

    cpdef object on_disk(self, PutMessageResult receipt):
        """Wait for the disk; the receipt, which says how that ended."""
        cdef double began = read_monotonic_s()
        cdef bint done
        try:
            done = self._group.wait(
                receipt.phy_offset + receipt.store_size, self.timeout_ms / 1000
            )
        except BaseException as error:
            if isinstance(error, OSError) and is_refusal(error):
                return self.not_on_disk(receipt, str(error))
            # reads must not pass over it now, and find it later
            self.not_waited_for(receipt)
            raise
        if not done:
            return self.not_on_disk(receipt, "")
        self._took(1000 * (read_monotonic_s() - began))
        receipt.durability = DISK
        return receipt

    def not_on_disk(self, PutMessageResult receipt, str failure):
        """The receipt after the disk has refused; with ``failure`` "" it did not answer in time."""
        if failure:
            return receipt.with_flush(PutMessageStatus.UNKNOWN_ERROR, receipt.durability, failure)
        reason = f"the disk did not confirm within {int(self.timeout_ms)} ms"
        return receipt.with_flush(PutMessageStatus.FLUSH_DISK_TIMEOUT, receipt.durability, reason)


cdef class MessagePutter:
    """Puts one message through a log tail.

    Args:
        tail: the end of the log.
        confirmation: what receipts wait for.
        general: the general path. It has ``put_generally``, which takes a message and its
            durability, whatever they are, and gives the receipt; ``confirmed_now``, which waits for
            all that the settings ask for, ``not_waited_for``, for a put that does not wait, and
            ``raised``, which raises what a receipt that is not good says: each takes a receipt and
            gives one.
    """

    cdef LogTail _tail
    cdef DiskWait _confirmation
    cdef object _general

    def __init__(self, LogTail tail not None, DiskWait confirmation not None, general):
        self._tail = tail
        self._confirmation = confirmation
        self._general = general

    cdef object _confirm(self, PutMessageResult receipt):
        if self._confirmation.slaves is None:
            return self._confirmation.on_disk(receipt)
        return self._general.confirmed_now(receipt)

    def put(
        self, topic, body, *, queue_id=0, tags=None, keys=(), properties=None, delay_level=0,
        flag=0, sys_flag=0, born_timestamp_ms=0, born_host=None, store_host=None,
        reconsume_times=0, prepared_transaction_offset=0, durability=None,
        # named properties: arguments
        expires_ms=None,
        sharding_key=None,
        # named properties end
    ):
        """Store one message.

        Args:
            topic: 1 to 255 characters of letters, digits, ``%``, ``|``, ``_`` and ``-``.
            body: bytes, at most ``max_message_size``.
            queue_id: queue of the topic, 0 or more.
            tags: filter tag.
            keys: look-up keys; a str is one key.
            properties: further pairs of str.
            delay_level: deliver later; needs ``deliver_delayed``.
            flag, sys_flag: application flag; RocketMQ's system flags.
            born_timestamp_ms: 0 for the time of the put.
            born_host, store_host: ``address:port``; None for the store's own.
            reconsume_times, prepared_transaction_offset: stored as given.
            durability: wait for "disk", or only for "page_cache"; None as configured.
            and properties that have names of their own, or None:
            expires_ms: Unix milliseconds from which on it is of no use.
            sharding_key: messages with the same one stay in order.

        Returns:
            the receipt, always with status PUT_OK.

        Raises:
            MessageIllegalError: the message breaks a limit; nothing was stored. ArgumentError, a
                kind of it, names an argument of a wrong type or range.
            StoreNotWritableError: the store takes no puts; the message says why.
            DiskFullError: no room for the next log file.
            FlushTimeoutError: stored, but not confirmed on disk in time.
            StoreClosedError: the store is closed.

        Durability: as the receipt says.
        Source: RocketMQ store/DefaultMessageStore.java, putMessage.
        """
        cdef RecordFields fields
        cdef object answer
        if type(keys) is not tuple and type(keys) is not str and keys is not None:
            # an iterator can be read once only, and a full file makes this try again
            keys = keys_of(keys)
        # named properties: merged
        if (
            expires_ms is not None
            or sharding_key is not None
        ):
            properties = with_named(
                properties,
                expires_ms=expires_ms,
                sharding_key=sharding_key,
            )
        # named properties end
        if delay_level is ZERO and durability is None and plain(properties):
            fields.queue_id = 0 if queue_id is ZERO else as_i32(queue_id, "queue_id")
            fields.flag = 0 if flag is ZERO else as_i32(flag, "flag")
            fields.sys_flag = 0 if sys_flag is ZERO else as_i32(sys_flag, "sys_flag")
            fields.born_timestamp = (
                0 if born_timestamp_ms is ZERO else as_i64(born_timestamp_ms, "born_timestamp_ms")
            )
            fields.reconsume_times = (
                0 if reconsume_times is ZERO else as_i32(reconsume_times, "reconsume_times")
            )
            fields.prepared_transaction_offset = 0
            if prepared_transaction_offset is not ZERO:
                fields.prepared_transaction_offset = as_i64(
                    prepared_transaction_offset, "prepared_transaction_offset"
                )
            answer = self._tail.put_fields(
                &fields, body, topic, tags, keys, properties, born_host, store_host
            )
            if type(answer) is PutMessageResult:
                if not self._confirmation.waits:
                    return answer
                return self._general.raised(self._confirm(answer))
        message = Message(
            topic, body, queue_id=queue_id, tags=tags, keys=keys, properties=properties,
            delay_level=delay_level, flag=flag, sys_flag=sys_flag,
            born_timestamp_ms=born_timestamp_ms, born_host=born_host, store_host=store_host,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
        )
        return self._general.raised(self._general.put_generally(message, durability))

    def put_message(self, message, *, durability=None):
        """Store one `Message`, or a copy of a `MessageExt`.

        Args:
            message: what to store; it is left as it is.
            durability: wait for "disk", or only for "page_cache"; None as configured.

        Returns:
            the receipt; its status says what went wrong when it was not the caller's mistake.

        Raises:
            MessageIllegalError: the message breaks a limit; nothing was stored.
            StoreClosedError: the store is closed.

        Durability: as the receipt says.
        Source: RocketMQ store/DefaultMessageStore.java, putMessage.
        """
        cdef object answer
        if (
            durability is None and isinstance(message, Message)
            and (<Message>message).delay_level == 0 and plain((<Message>message).properties)
        ):
            answer = self._tail.put_one(<Message>message)
            if type(answer) is PutMessageResult:
                if not self._confirmation.waits:
                    return answer
                if (<Message>message).wait_store_msg_ok:
                    return self._confirm(answer)
                return self._general.not_waited_for(answer)
        return self._general.put_generally(message, durability)

    def append_wire(self, WireMessage message not None):
        """Append a client's message, or a batch, as it is; answers as `put_message` of the tail."""
        return self._append_wire(message)

    cdef object _append_wire(self, WireMessage message):
        cdef RecordFields fields = message.fields
        if message.properties is None:
            return self._tail.put_batch(
                &fields, message.body, message.topic, message.born_host, None
            )
        return self._tail.put_fields(
            &fields, message.body, message.topic, None, None, message.properties,
            message.born_host, None,
        )

    def append_now(self, WireMessage message not None):
        """Append a client's message, or a batch, if that needs no waiting.

        What is appended is stored as it is: nothing is delayed, and a half message is the caller's
        to make.

        Returns:
            the receipt; None when the next log file has to be waited for, or the store takes no
            puts: `append_later` then.

        Raises:
            MessageIllegalError: it breaks a limit; nothing was stored.
        """
        cdef object answer = self._append_wire(message)
        return answer if type(answer) is PutMessageResult else None


cdef inline bint plain(object properties) except -1:
    """True when there are no properties, or those of a dict ask for no delayed delivery."""
    if properties is None:
        return True
    return type(properties) is dict and "DELAY" not in <dict>properties
