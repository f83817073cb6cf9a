"""Why a message is not found in an archive: what its manifest says, and the file's records."""

from __future__ import annotations

from rmqcore._codec import decode_record
from rmqcore.doctor.explanation import Explanation
from rmqcore.scan.archive_log import ArchiveLog, SelectedArchive
from rmqcore.scan.read import read
from rmqcore.scan.selection import Selection

_FILES_SHOWN = 8


class ArchiveQuestion:
    """One question to one archive.

    Args:
        log: the archive.
    """

    def __init__(self, log: ArchiveLog) -> None:
        self._log = log
        self._answer = Explanation("")

    def note(self, what: str, there: str) -> None:
        """Add what was looked at, and what is there.

        Args:
            what: was looked at.
            there: is said of it, in a sentence.
        """
        self._answer.facts.append((what, there))

    def _because(self, reason: str, advice: str = "", *, found: bool = False) -> Explanation:
        self._answer.reason, self._answer.advice, self._answer.found = reason, advice, found
        return self._answer

    def by_queue_offset(self, topic: str, queue_id: int, queue_offset: int) -> Explanation:
        """Why a message is not found by its number.

        Args:
            topic: of the message.
            queue_id: queue of the topic.
            queue_offset: number of the message in it.
        """
        self._answer.question = f"the message {topic}/{queue_id} offset {queue_offset}"
        span = self._log.queue_range(topic, queue_id)
        if span is None:
            return self._because("no archived file has messages of this queue")
        self.note("manifest", f"it has the offsets {span[0]} to {span[1]}, the latter not")
        if not span[0] <= queue_offset < span[1]:
            return self._because("the archive has other offsets of the queue", _LATER)
        place = queue_offset, queue_offset + 1
        return self._first(
            {
                "topics": [topic],
                "queue_ids": [queue_id],
                "queue_offsets": {topic: {queue_id: place}},
            }
        )

    def by_key(self, topic: str, key: str) -> Explanation:
        """Whether a file with messages of a topic has one with a key: archives have no index.

        Args:
            topic: of the message.
            key: one of its keys, or its unique key.
        """
        self._answer.question = f"messages of {topic} with the key {key}"
        return self._first({"topics": [topic], "keys": [key]})

    def by_phy_offset(self, phy_offset: int) -> Explanation:
        """Why no message is found at a physical offset."""
        self._answer.question = f"the message at physical offset {phy_offset}"
        log = self._log
        self.note("archive", f"physical offsets {log.start} to {log.end}")
        if not log.start <= phy_offset < log.end:
            return self._because("it is not archived", _LATER)
        record = log.record_at(phy_offset)
        if record is None:
            return self._because("no whole record begins here")
        message = decode_record(record)
        named = f"{message.topic}/{message.queue_id} offset {message.queue_offset}"
        self.note("record", f"{named}, {message.store_size} bytes")
        return self._because("it is there, and whole", found=True)

    def _first(self, selection: Selection) -> Explanation:
        """The first record of a selection, in the files that may have it."""
        chosen = SelectedArchive(self._log, selection)
        for file in chosen.files[:_FILES_SHOWN]:
            self.note("file", f"{file.start:020d} may have it")
        if len(chosen.files) > _FILES_SHOWN:
            self.note("files", f"and {len(chosen.files) - _FILES_SHOWN} more may")
        if not chosen.files:
            return self._because("no archived file has messages of this queue")
        for split in chosen.splits():
            for batch in read(split, ("phy_offset",), **selection):
                phy_offset = int(batch.numbers("phy_offset")[0])
                self.note("record", f"at physical offset {phy_offset}")
                return self._because("it is there, and whole", found=True)
        return self._because("the files that may have it have not")

    def of_archive(self) -> Explanation:
        """What the archive has."""
        log = self._log
        self._answer.question = "the archive"
        self.note("manifest", f"number {log.manifest.generation}")
        self.note("log", f"physical offsets {log.start} to {log.end}")
        self.note("files", f"{(log.end - log.start) // log.file_size} of {log.file_size} bytes")
        return self._because("it is there; rmqcore verify reads all of it", found=True)


_LATER = "rmqcore doctor explain of the store tells of what is not archived yet"
