"""Scrapy's disk queues over a store, for ``SCHEDULER_DISK_QUEUE`` and its like.

One store holds all queues of a JOBDIR. A request that was on its way when the crawl was killed
comes back when that is resumed. docs/adapters/scrapy.md names the settings that it takes.
"""

from __future__ import annotations

import io
import json
import logging
import marshal
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

from scrapy import signals
from scrapy.dupefilters import _SIZE_BYTES, RFPDupeFilter, _read_fingerprints
from scrapy.extensions.feedexport import FileFeedStorage
from scrapy.squeues import _pickle_serialize, _scrapy_serialization_queue, _serializable_queue
from scrapy.utils.defer import deferred_from_coro

from rmqcore.adapters.named_queues import named_queues
from rmqcore.adapters.queuelib import DiskQueue, FifoQueue, LifoQueue
from rmqcore.errors import (
    ConfigError,
    MessageIllegalError,
    RmqCoreError,
    StoreError,
    StoreLockedError,
)
from rmqcore.world import sync_directory, sync_file

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

_log = logging.getLogger("rmqcore")
#: where Scrapy's scheduler keeps its queues below a JOBDIR, and there the list of those in use
REQUESTS: Final = "requests.queue"
ACTIVE: Final = "active.json"
#: The store's directory in there.
STORE: Final = "rmqcore"
#: formats of a feed in which an item is a line
LINE_FORMATS: Final = frozenset({"jsonlines", "jsonl", "jl", "csv"})


class SeenFile:
    """Scrapy's file ``requests.seen``, one record behind: the last one can be taken back."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._last = b""

    def write(self, record: bytes) -> None:
        """Keep a record; the one before it is in the file then."""
        self._file.write(self._last)
        self._file.flush()
        self._last = record

    def forget_last(self) -> None:
        """Forget the last record."""
        self._last = b""

    def close(self) -> None:
        """Write the last record."""
        self.write(b"")
        self._file.close()


class DupeFilter(RFPDupeFilter):  # type: ignore[misc]
    """Scrapy's filter, with a request in ``requests.seen`` once it is queued, and not before.

    Scrapy's own writes the file every few hundred requests, and then also one that is not queued
    yet: killed at that moment, the crawl would never make this request. All but the last one that
    it was asked for are queued.
    """

    file: Any

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._crawler: Crawler | None = None
        if self.file is not None:
            _cut_half_a_record(self.file)
            self.file = SeenFile(self.file)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The filter of a crawl, which ends when the file takes nothing more.

        Args:
            crawler: that runs the spider.
        """
        made: Self = super().from_crawler(crawler)
        made._crawler = crawler
        return made

    def request_seen(self, request: Request) -> bool:
        """Tell whether a request was seen before, and keep that it is now.

        Raises:
            OSError: the system refused; Scrapy drops the request, and the crawl ends.
        """
        with refusals(Job.running(self._crawler)):
            return bool(super().request_seen(request))

    def forget_last(self) -> None:
        """The last request is not queued: let the next run make it."""
        if self.file is not None:
            self.file.forget_last()


def _cut_half_a_record(file: BinaryIO) -> None:
    """Cut off half a record, which a kill or a full disk has left: it hides those behind it."""
    file.seek(0)
    read = _read_fingerprints(file.read())
    file.truncate(sum(_SIZE_BYTES + len(fingerprint) for fingerprint in read))


class WholeWrites(io.BufferedWriter):
    """A file that has all that was written once `write` returns.

    Args:
        raw: the file.
        crawler: whose crawl ends when the file takes nothing more.
    """

    def __init__(self, raw: io.RawIOBase, crawler: Crawler | None) -> None:
        super().__init__(raw)
        self._crawler = crawler

    def write(self, content: Any, /) -> int:
        """Write all of it.

        Raises:
            OSError: the system refused; Scrapy goes on without the item, and the crawl ends.
        """
        with refusals(Job.running(self._crawler)):
            size = super().write(content)
            self.flush()
        return size


class FeedFile(FileFeedStorage):  # type: ignore[misc]
    """Scrapy's file of items (``-o``), for ``FEED_STORAGES``: an item is in it once it was scraped.

    Scrapy's own keeps up to 8 KiB of items in memory, of pages that are done with: a kill takes
    them, and the next run asks for none of these pages again. Where the kill came in the middle of
    a line, the next run begins another one.
    """

    def __init__(self, uri: str, *, feed_options: dict[str, Any] | None = None) -> None:
        super().__init__(uri, feed_options=feed_options)
        self._has_lines = (feed_options or {}).get("format") in LINE_FORMATS

    def open(self, spider: Spider) -> io.BufferedWriter:
        """Open the file as Scrapy's settings say.

        Args:
            spider: whose items are written.

        Raises:
            OSError: the system refused.
        """
        with super().open(spider) as scrapys:
            ends_in_a_line = not scrapys.tell() or _last_byte(self.path) == b"\n"
        file = WholeWrites(io.FileIO(self.path, "ab"), getattr(spider, "crawler", None))
        if self._has_lines and not ends_in_a_line:
            file.write(b"\n")
        return file


def _last_byte(path: str) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read()


class Job:
    """The crawl of a JOBDIR: keeps its store open, and Scrapy's list of its queues up to date.

    Scrapy writes the list when a crawl ends in order, and resumes with the queues that are in it;
    what it has to write is written here, so that a full disk or a kill leaves the one before.
    """

    _running: Final[dict[Path, Job]] = {}

    def __init__(self, crawler: Crawler, below: Path) -> None:
        self._crawler = crawler
        self._below = below
        self._requests = requests = below.resolve()
        if requests in self._running:
            raise StoreLockedError(requests, os.getpid())
        self._home = named_queues(requests / STORE)
        self._list: Any = None
        #: requests that were popped and are not known to be done, with what releases each
        self._held: dict[Request, Callable[[], None]] = {}
        self._refused = False
        with suppress(FileNotFoundError):
            self._list = json.loads((requests / ACTIVE).read_text("utf-8"))
        crawler.engine._slot.scheduler._write_dqs_state = self._end_list
        crawler.signals.connect(self._finish, signals.spider_closed)
        self._running[requests] = self

    @classmethod
    def of(cls, crawler: Crawler, queue: Path) -> Job | None:
        """The crawl that a queue's path belongs to; None when it is of no scheduler's.

        Args:
            crawler: that runs the spider.
            queue: path of one of its queues.

        Raises:
            StoreLockedError: another crawl has it; its files stay as they are.
        """
        below = requests_directory(queue)
        if below is None or crawler.engine is None:
            return None
        job = cls._running.get(below.resolve())
        if job is None or job._crawler is not crawler:
            try:
                job = Job(crawler, below)
            except BaseException:
                scheduler = crawler.engine._slot.scheduler
                scheduler._write_dqs_state = lambda *_: None
                _forget_last(scheduler)
                raise
        return job

    @classmethod
    def running(cls, crawler: Crawler | None) -> Job | None:
        """The crawl that a crawler runs; None when none of its queues is open.

        Args:
            crawler: None is nobody's.
        """
        return next((job for job in cls._running.values() if job._crawler is crawler), None)

    def add(self, queue: Path, request: Request) -> None:
        """See that the list has the queue that a request is about to be put in.

        ``ScrapyPriorityQueue`` has a list of priorities; ``DownloaderAwarePriorityQueue`` one for
        each download slot. Queues of start requests end in an ``s``. Other names are of others.

        Args:
            queue: its path, below that of the crawl's requests.
            request: the one that is about to be put.
        """
        *slots, last = queue.relative_to(self._below).parts
        priority = last.removesuffix("s")
        if len(slots) > 1 or not priority.removeprefix("-").isdigit():
            return
        if slots:
            slot = self._crawler.engine.downloader.get_slot_key(request)
            slots_before = self._list if isinstance(self._list, dict) else {}
            before = slots_before.get(slot, [])
            now: Any = {**slots_before, slot: [*before, int(priority)]}
        else:
            before = self._list if isinstance(self._list, list) else []
            now = [*before, int(priority)]
        if int(priority) not in before:
            self._write_list(now)

    def _write_list(self, queues: Any) -> None:
        written = self._requests / f"{ACTIVE}.new"
        written.write_text(json.dumps(queues), "utf-8")
        # a power cut else leaves the name with nothing in it, with which no crawl begins, or the
        # list without a queue whose requests are on the disk
        sync_file(written)
        written.replace(self._requests / ACTIVE)
        sync_directory(self._requests)
        self._list = queues

    def _end_list(self, _: str, queues: Any) -> None:
        """Write what Scrapy has to write at the end of a crawl; of one that was refused nothing."""
        if self._refused:
            return
        try:
            self._write_list(queues)
        except OSError as error:
            # the one before has all of these
            _log.warning("%s: the list of queues stays as it is: %s", self._requests, error)

    def hold(self, request: Request, release: Callable[[], None]) -> None:
        """Note a request that the engine is about to take.

        Args:
            request: the one that is taken.
            release: called when its callback has ended.
        """
        self._held[request] = release

    def release_done(self) -> None:
        """Let go of the requests that the engine has done with: their callbacks have ended."""
        if self._refused:
            return
        # Scrapy has no signal for that; the engine's own set of requests says it
        at_work = self._crawler.engine._slot.inprogress
        for request in [one for one in self._held if one not in at_work]:
            self._held.pop(request)()

    def refuse(self, error: Exception, *, of_request: bool) -> None:
        """End the crawl: a request cannot be queued, or an item not be written; Scrapy drops it.

        Nothing is released from now on, so that the next run makes what was at work again, and
        what that yields.

        Args:
            error: what the system said.
            of_request: it is the last request that the filter was asked for that is not queued.
        """
        engine = self._crawler.engine
        if of_request:
            _forget_last(engine._slot.scheduler)
        if not self._refused:
            self._refused = True
            _log.error("%s: the crawl ends, run it again: %s", self._home.path, error)
            deferred_from_coro(engine.close_spider_async(reason="queue_refused"))

    def _finish(self) -> None:
        """The crawl has ended in order: every request was done with, or a queue has refused."""
        del self._running[self._requests]
        if not self._refused:
            self._home.release_all()
        self._home.leave()


def _forget_last(scheduler: Any) -> None:
    """The last request that a scheduler's filter was asked for is not queued."""
    if isinstance(scheduler.df, DupeFilter):
        scheduler.df.forget_last()


@contextmanager
def refusals(job: Job | None, *, of_request: bool = False) -> Iterator[None]:
    """Tell the job when the store refuses.

    To Scrapy a ValueError means a request that cannot be serialized and may wait in memory: what
    says that a request is too large stays one, what says that the store cannot be used does not.

    Args:
        job: None is nobody's.
        of_request: see `Job.refuse`.

    Raises:
        StoreError: in place of a ConfigError, which Scrapy would take for a request's own.
    """
    try:
        yield
    except MessageIllegalError:
        raise
    except (OSError, RmqCoreError) as error:
        if job is not None:
            job.refuse(error, of_request=of_request)
        if isinstance(error, ConfigError):
            raise StoreError(str(error)) from error
        raise


def requests_directory(queue: Path) -> Path | None:
    """The scheduler's directory above a queue's path; None when the path is in none."""
    return next((above for above in queue.parents if above.name == REQUESTS), None)


class HeldDiskQueue(DiskQueue):
    """What is popped is held; `taken` is the last one, with what releases it."""

    taken: tuple[bytes, Callable[[], None]] | None = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        requests = requests_directory(Path(path))
        super().__init__(path, store=requests and requests / STORE)

    def pop(self) -> bytes | None:
        """Take the next element, and hold it."""
        self.taken = None
        self.taken = self.hold()
        return None if self.taken is None else self.taken[0]

    def bury_taken(self) -> bool:
        """Make the last one popped a dead letter; False when there was none."""
        if self.taken is not None:
            self.bury(self.taken[0])
            self.taken[1]()
        return self.taken is not None


def _request_queue(
    base: type[DiskQueue], serialize: Callable[[Any], bytes], deserialize: Callable[[bytes], Any]
) -> type[Any]:
    """A queue of requests, from one of bytes and the functions between the two."""
    held = type("HeldDiskQueue", (HeldDiskQueue, base), {})
    wrapped: type[Any] = _scrapy_serialization_queue(
        _serializable_queue(held, serialize, deserialize)
    )

    class RequestQueue(wrapped):  # type: ignore[misc]
        """In a crawl, what is popped is held until Scrapy is done with the request."""

        def __init__(self, crawler: Crawler, key: str) -> None:
            with refusals(None):
                self._job = Job.of(crawler, Path(key))
            with refusals(self._job, of_request=True):
                super().__init__(crawler, key)
            self._listed = False

        def push(self, request: Request) -> None:
            with refusals(self._job, of_request=True):
                if self._job is not None:
                    self._job.release_done()
                    if not self._listed:
                        self._job.add(Path(self.path), request)
                        self._listed = True
                super().push(request)

        def pop(self) -> Request | None:
            if self._job is not None:
                self._job.release_done()
            with refusals(self._job):
                return self._readable()

        def _readable(self) -> Request | None:
            while True:
                try:
                    request = super().pop()
                except Exception:
                    if not self.bury_taken():
                        raise
                    _log.exception("%s: a request that cannot be read; a dead letter", self.path)
                    continue
                if request is not None:
                    release = self.taken[1]
                    release() if self._job is None else self._job.hold(request, release)
                return request

    return RequestQueue


# a JOBDIR is as trusted as the spider: Scrapy's own queues unpickle it, too
PickleFifoQueue = _request_queue(FifoQueue, _pickle_serialize, pickle.loads)
PickleLifoQueue = _request_queue(LifoQueue, _pickle_serialize, pickle.loads)
MarshalFifoQueue = _request_queue(FifoQueue, marshal.dumps, marshal.loads)
MarshalLifoQueue = _request_queue(LifoQueue, marshal.dumps, marshal.loads)
