"""How far an import has come whose entries are put one by one, so that it goes on behind a kill.

That is in a table of the store, set behind each entry and so in the log behind it: neither a kill
nor a power cut leaves more of it than of the entries. Of the one entry that may have been put since
the log is asked: its message has a property by which it is no other one's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from rmqcore.message import MessageExt
from rmqcore.store.protocol import MessageStore
from rmqcore.transfer.import_record import (
    PENDING,
    AlreadyImportedError,
    ImportRecord,
    digests_of,
)

TABLE: Final = "rmqcore-imports"
#: the property of an imported message that tells which entry of which import it is
PROPERTY: Final = "IMPORTED"
_MARK_SIZE: Final = 8


class ImportProgress:
    """The entries of some files, of which the first have been put.

    Call `passes` for each entry, in an order that the files alone decide, `advance` when it has
    been put, and `finish` behind the last one.

    Args:
        store: open for writing; other processes may be using it.
        record: of the same store.
        paths: the files.
        again: begin anew, whatever has been put before.

    Raises:
        AlreadyImportedError: a file was imported before, or with other files than these in an
            import that ended early.
    """

    def __init__(
        self, store: MessageStore, record: ImportRecord, paths: Iterable[Path], *, again: bool
    ) -> None:
        self._store = store
        self._record = record
        files = list(paths)
        self._digests = digests_of(files)
        self._key = hashlib.sha256("\n".join(self._digests).encode()).digest()
        #: entries that have been passed or put by this import
        self._at = 0
        #: entries that are known to be in, and where the log ended behind them
        self._count, self._end = self._begin(files, again=again)

    def _begin(self, files: list[Path], *, again: bool) -> tuple[int, int]:
        (noted,) = self._store.kv_get(TABLE, [self._key])
        if not again:
            for path, digest in zip(files, self._digests, strict=True):
                state = self._record.state(digest)
                if state is not None and (state != PENDING or noted is None):
                    raise AlreadyImportedError(path, state is True)
            if noted is not None:
                count, end = map(int, noted.split())
                return count, end
        begun = 0, self._store.max_phy_offset
        self._note(*begun)
        self._store.flush()
        self._record.note(dict.fromkeys(self._digests, PENDING))
        return begun

    def _note(self, count: int, end: int) -> None:
        self._store.kv_put(TABLE, self._key, b"%d %d" % (count, end))

    @property
    def mark(self) -> dict[str, str]:
        """The property that the next entry's message is to have, and no other one's has."""
        return {PROPERTY: f"{self._key[:_MARK_SIZE].hex()} {self._at}"}

    def _is_marked(self, stored: MessageExt) -> bool:
        return stored.properties.get(PROPERTY) == self.mark[PROPERTY]

    def passes(self, is_its: Callable[[MessageExt], bool] | None = None) -> bool:
        """Tell whether the next entry has been put before; it is passed over then.

        Args:
            is_its: tells whether a record is what a put of the entry leaves; None: it has `mark`.
        """
        is_in = self._at < self._count
        if self._at == self._count and self._end >= 0:
            # the process may have been killed between the entry and the note of it
            is_in = any(map(is_its or self._is_marked, self._store.messages(start=self._end)))
            self._end = -1
            if is_in:
                self.advance()
                return True
        self._at += is_in
        return is_in

    def advance(self) -> None:
        """Note that the next entry has been put."""
        self._at += 1
        self._note(self._at, self._store.max_phy_offset)

    def finish(self) -> None:
        """Note that all have been put, on the disk."""
        self._store.flush()
        self._record.finish(self._digests)
        self._store.kv_put(TABLE, self._key, None)
