"""The manifest of an archive: which log files it has, and what is in each.

A manifest is an object with a number, made only where there is none of that number; the one with
the highest counts. It lists the last files itself, and pages of earlier ones, which never change::

    manifest/0000000017.json   {"format": "rmqcore-archive", "version": 1, ...}
    pages/00000000000000000000-1f2e...json
    commitlog/00000000001073741824        a log file, byte for byte
    commitlog/00000000001073741824.idx    what is in it, with record starts every 4 MiB
    tables/1f2e...                        a table below config/, named by its SHA-256
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from rmqcore.files.objects import Objects
from rmqcore.files.objects.errors import ArchiveConflictError, ArchiveError, ObjectExistsError

FORMAT = "rmqcore-archive"
VERSION = 1
#: A page lists this many files.
PAGE_FILES = 256
#: A page names at most this many topics.
PAGE_TOPICS = 256
#: This many pages are fetched at once.
_FETCHES = 16
#: This many older manifests stay, for readers that have just listed them.
MANIFESTS_KEPT = 8
#: What has more bytes is no manifest, page or table.
_SIZE_MAX = 1 << 30
_NAME = re.compile(r"manifest/(\d{10})\.json")
#: a queue of a file: (queue id, rows, bytes, first queue offset, last queue offset)
QueueRow = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A log file of an archive, and what is in it.

    Attributes:
        start: physical offset of its first byte.
        size: bytes.
        sha256: of them, hexadecimal.
        tag: of the object, where its place has tags; else empty.
        rows: records, those of transactions that were not committed too.
        first_ms, last_ms: the lowest and the highest store time, Unix milliseconds.
        cuts: physical offsets where records begin, about every 64 MiB.
        topics: by topic the queues that have messages there; None where records could not be
            told apart by queue, so that the file may hold any.
    """

    start: int
    size: int
    sha256: str
    tag: str
    rows: int
    first_ms: int
    last_ms: int
    cuts: tuple[int, ...] = ()
    topics: dict[str, list[QueueRow]] | None = None

    @property
    def end(self) -> int:
        """Physical offset behind its last byte."""
        return self.start + self.size

    def as_dict(self) -> dict[str, Any]:
        """As it is written down."""
        return {name: getattr(self, name) for name in _FIELDS}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> ArchivedFile:
        """As it was written down."""
        return cls(**{**{name: found[name] for name in _FIELDS}, "cuts": tuple(found["cuts"])})


_FIELDS = ("start", "size", "sha256", "tag", "rows", "first_ms", "last_ms", "cuts", "topics")


@dataclass(frozen=True, slots=True)
class Page:
    """A page of earlier files.

    Attributes:
        name: of the object.
        sha256: of its bytes.
        start, end: physical offsets of what its files hold.
        first_ms, last_ms: the lowest and the highest store time in them.
        topics: all that have messages in them; None where they are too many, or not all known.
    """

    name: str
    sha256: str
    start: int
    end: int
    first_ms: int
    last_ms: int
    topics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive has.

    Attributes:
        generation: number of the manifest; 0 before the first.
        writer: who wrote it, a number drawn by chance.
        file_size: bytes of every log file; 0 before the first.
        pages: of earlier files.
        files: the last ones.
        tables: by name below ``config/``, the SHA-256 of a table.
    """

    generation: int = 0
    writer: str = ""
    file_size: int = 0
    pages: tuple[Page, ...] = ()
    files: tuple[ArchivedFile, ...] = ()
    tables: dict[str, str] = field(default_factory=dict)

    @property
    def start(self) -> int:
        """Physical offset of the first byte; 0 for none."""
        if self.pages:
            return self.pages[0].start
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        """Physical offset behind the last byte; 0 for none."""
        if self.files:
            return self.files[-1].end
        return self.pages[-1].end if self.pages else 0

    def to_json(self) -> bytes:
        """As it is written."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            "generation": self.generation,
            "writer": self.writer,
            "file_size": self.file_size,
            "pages": [{name: getattr(page, name) for name in _PAGE_FIELDS} for page in self.pages],
            "files": [file.as_dict() for file in self.files],
            "tables": self.tables,
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, url: str, data: bytes) -> Manifest:
        """As it was written.

        Args:
            url: where it was found, for errors.
            data: its bytes.

        Raises:
            ArchiveError: it is no manifest, or one of a later version.
        """
        try:
            found = json.loads(data)
            if found["format"] != FORMAT or found["version"] > VERSION:
                version = f"{found['format']} {found['version']}"
                raise ArchiveError(url, f"a manifest of {version}; this reads {FORMAT} {VERSION}")
            read = cls(
                found["generation"],
                found["writer"],
                found["file_size"],
                tuple(_page(page) for page in found["pages"]),
                tuple(ArchivedFile.from_dict(file) for file in found["files"]),
                found["tables"],
            )
            _check_kinds(read)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ArchiveError(url, f"no manifest: {type(error).__name__}: {error}") from None
        return read


def _check_kinds(read: Manifest) -> None:
    """Look that everything is of its kind; the pages are known by their SHA-256.

    Raises:
        TypeError, ValueError: something is not.
    """
    whole: list[Any] = [read.generation, read.file_size]
    signed: list[Any] = []
    text: list[Any] = [read.writer, *read.tables.keys(), *read.tables.values()]
    for page in read.pages:
        whole += [page.start, page.end]
        signed += [page.first_ms, page.last_ms]
        text += [page.name, page.sha256, *(page.topics or ())]
    for file in read.files:
        whole += [file.start, file.size, file.rows, *file.cuts]
        signed += [file.first_ms, file.last_ms]
        text += [file.sha256, file.tag, *(file.topics or {})]
        for queues in (file.topics or {}).values():
            for queue_id, rows, size, first, last in queues:
                signed += [queue_id, rows, size, first, last]
    if not all(type(one) is int and -(1 << 63) <= one < 1 << 63 for one in (*whole, *signed)):
        raise TypeError("a number is none, or beyond all that there are")
    if min(whole) < 0 or (read.end and not read.file_size):
        raise ValueError("a size or a place is none")
    if not all(type(one) is str for one in text):
        raise TypeError("a name is no text")


def _page(found: dict[str, Any]) -> Page:
    topics = found["topics"]
    return Page(**{**found, "topics": None if topics is None else tuple(topics)})


_PAGE_FIELDS = ("name", "sha256", "start", "end", "first_ms", "last_ms", "topics")


# ---- reading


def load_manifest(objects: Objects) -> Manifest:
    """The manifest of an archive as it is now; an empty one where there is none.

    Raises:
        ArchiveError: what is there is none, or has another one's number.
        ObjectStoreError: it cannot be read.
    """
    newest = max(_generations(objects), default=0)
    if not newest:
        return Manifest()
    name = _name(newest)
    url = f"{objects.url}/{name}"
    found = Manifest.from_json(url, read_object(objects, name))
    if found.generation != newest:
        raise ArchiveError(url, f"no manifest {newest}: by its content it is {found.generation}")
    return found


def settle_manifest(objects: Objects, manifest: Manifest) -> None:
    """Make a manifest that was found survive a power cut, before something relies on it.

    Args:
        objects: of the archive.
        manifest: from `load_manifest`.

    Raises:
        OSError: the disk refused.
    """
    if manifest.generation:
        objects.settle(_name(manifest.generation))


def require_manifest(objects: Objects) -> Manifest:
    """The manifest of an archive as it is now.

    Raises:
        ArchiveError: no archive is there.
        ObjectStoreError: it cannot be read.
    """
    manifest = load_manifest(objects)
    if not manifest.generation:
        raise ArchiveError(objects.url, "no archive is here; rmqcore archive makes one")
    return manifest


def read_object(objects: Objects, name: str) -> bytes:
    """All of a small object.

    Args:
        objects: of the archive.
        name: of the object.

    Raises:
        ArchiveError: it is none.
        ObjectStoreError: it cannot be read.
    """
    reader = objects.open(name)
    try:
        if reader.size > _SIZE_MAX:
            reason = f"{reader.size} bytes; nothing that is read at once has so many"
            raise ArchiveError(f"{objects.url}/{name}", reason)
        return reader.read_at(0, reader.size)
    finally:
        reader.close()


def read_table(objects: Objects, sha256: str) -> bytes:
    """A table of a store, as it was archived.

    Args:
        objects: of the archive.
        sha256: as the manifest names it.

    Raises:
        ArchiveError: it is another than the one that was archived.
        ObjectStoreError: it cannot be read.
    """
    name = f"tables/{sha256}"
    data = read_object(objects, name)
    if hashlib.sha256(data).hexdigest() != sha256:
        url = f"{objects.url}/{name}"
        raise ArchiveError(url, "the table is not the one that the manifest names")
    return data


def files_of(objects: Objects, manifest: Manifest, pages: Iterable[Page]) -> Iterator[ArchivedFile]:
    """The files of some pages, and the last ones, in log order; pages are fetched side by side.

    Args:
        objects: of the archive.
        manifest: of the archive.
        pages: those that are wanted, of ``manifest.pages``.

    Raises:
        ArchiveError: a page is not the one that the manifest names.
        ObjectStoreError: one cannot be read.
    """
    wanted = list(pages)
    if wanted:
        with ThreadPoolExecutor(min(_FETCHES, len(wanted)), "ArchivePages") as pool:
            for page, data in zip(
                wanted, pool.map(lambda one: read_object(objects, one.name), wanted), strict=True
            ):
                if hashlib.sha256(data).hexdigest() != page.sha256:
                    url = f"{objects.url}/{page.name}"
                    raise ArchiveError(url, "the page is not the one that the manifest names")
                yield from _files_in(f"{objects.url}/{page.name}", data)
    yield from manifest.files


def _files_in(url: str, data: bytes) -> list[ArchivedFile]:
    try:
        return [ArchivedFile.from_dict(file) for file in json.loads(data)]
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(url, f"no page: {type(error).__name__}: {error}") from None


def _generations(objects: Objects) -> list[int]:
    found = (_NAME.fullmatch(one.name) for one in objects.list("manifest"))
    return [int(match[1]) for match in found if match]


def _name(generation: int) -> str:
    return f"manifest/{generation:010d}.json"


# ---- writing


def with_file(objects: Objects, manifest: Manifest, file: ArchivedFile) -> Manifest:
    """A manifest with one file more; what fills a page is written as one.

    Args:
        objects: of the archive; a page may be written there.
        manifest: as it was read or written last.
        file: the one that follows the manifest's last one.
    """
    files = (*manifest.files, file)
    pages = manifest.pages
    if len(files) > PAGE_FILES:
        full, files = files[:PAGE_FILES], files[PAGE_FILES:]
        pages = (*pages, _written_page(objects, full))
    return replace(manifest, pages=pages, files=files, file_size=file.size)


def _written_page(objects: Objects, files: tuple[ArchivedFile, ...]) -> Page:
    rows = [file.as_dict() for file in files]
    data = json.dumps(rows, separators=(",", ":")).encode()
    sha256 = hashlib.sha256(data).hexdigest()
    name = f"pages/{files[0].start:020d}-{sha256[:16]}.json"
    create_same(objects, name, data, sha256)
    return Page(
        name,
        sha256,
        files[0].start,
        files[-1].end,
        min(file.first_ms for file in files),
        max(file.last_ms for file in files),
        _topics_of(files),
    )


def _topics_of(files: tuple[ArchivedFile, ...]) -> tuple[str, ...] | None:
    names: set[str] = set()
    for file in files:
        if file.topics is None:
            return None
        names |= file.topics.keys()
    return tuple(sorted(names)) if len(names) <= PAGE_TOPICS else None


def create_same(objects: Objects, name: str, data: bytes, sha256: str) -> None:
    """Make a small object, or see that it is there with the same bytes.

    Args:
        objects: of the archive.
        name: of the object.
        data: its bytes.
        sha256: of these bytes, in hex.

    Raises:
        ArchiveConflictError: it is there with others.
    """
    try:
        objects.create(name, data, sha256)
    except ObjectExistsError:
        if hashlib.sha256(read_object(objects, name)).hexdigest() != sha256:
            url = f"{objects.url}/{name}"
            raise ArchiveConflictError(url, "another object is there, and is kept") from None


def commit(objects: Objects, manifest: Manifest) -> Manifest:
    """Write the next manifest; what it says counts when this returns.

    Args:
        objects: of the archive.
        manifest: the last one that was read or written, changed.

    Returns:
        it, with its number.

    Raises:
        ArchiveConflictError: another archiver has written one since; nothing of it was changed.
        ObjectStoreError: it could not be written, or it is not known whether it was.
    """
    following = replace(manifest, generation=manifest.generation + 1)
    name, data = _name(following.generation), following.to_json()
    conflict = ArchiveConflictError(
        objects.url,
        f"another archiver has written {name}; let one archiver work here, each store at its "
        "own URL",
    )
    try:
        objects.create(name, data, hashlib.sha256(data).hexdigest())
    except ObjectExistsError:
        # after a cut connection it may be ours, which nobody else's is like
        if read_object(objects, name) != data:
            raise conflict from None
    generations = sorted(_generations(objects))
    if generations[-1] > following.generation and manifest.generation not in generations:
        # older ones are deleted: who has slept through that finds a number free
        if following.generation <= generations[-1] - MANIFESTS_KEPT:
            with suppress(OSError):
                objects.delete(name)
        raise conflict
    # the new one counts, whether who has written it may delete or not; where one stays, nobody asks
    # for all of the others each time
    with suppress(OSError):
        for old in generations[:-MANIFESTS_KEPT]:
            objects.delete(_name(old))
    return following
