"""``config/imports.json``: which files have been imported, and how far those that were begun are.

An import writes it; an opening notes where the log ended behind an import that was killed, so that
what others put later is not counted as that import's. RocketMQ ignores the file.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rmqcore.errors import CorruptConfigFileError
from rmqcore.files.config_file import ConfigFile, sealed, unsealed

if TYPE_CHECKING:
    from rmqcore.files.store_dir import StoreDir

_FILE_NAME: Final = "imports.json"

#: What is known of a file: True when it has been imported whole, False when that ended early, or
#: the physical offset of the log's end when its next message was about to be put.
State = bool | int


@dataclass(slots=True)
class ImportNote:
    """What is known of imports.

    Attributes:
        files: by their digests.
        counts: messages of a file that were in before the place that its state names.
        log_end: where the log ended when the last import had ended, or since, when that is less;
            None: it may be going on.
    """

    files: dict[str, State] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    log_end: int | None = None

    def text(self) -> str:
        """The file's content."""
        return sealed(json.dumps(asdict(self), indent=1) + "\n")


def import_note_file(directory: StoreDir) -> ConfigFile[ImportNote]:
    """The file in a store; nothing is opened."""
    return ConfigFile(directory.config / _FILE_NAME, _decoded)


def end_imports(directory: StoreDir, log_end: int) -> None:
    """Note that what comes behind the end of the log is no put of an import that was killed.

    Where it cannot be noted, or RocketMQ has opened the store meanwhile, what is like a message of
    the import counts as one.

    Args:
        directory: of the store, which nobody else has open.
        log_end: where its log ends.
    """
    file = import_note_file(directory)
    with suppress(CorruptConfigFileError, OSError):
        note = file.load()
        begun = note is not None and any(type(state) is int for state in note.files.values())
        if note is not None and begun and (note.log_end is None or note.log_end > log_end):
            # also where a log that has lost its end goes on: what was in there is gone
            note.log_end = log_end
            file.store(note.text())


def _decoded(text: str) -> ImportNote:
    content: Any = json.loads(unsealed(text))
    if not isinstance(content, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - the text is wrong
    files, counts = content.get("files"), content.get("counts", {})
    if not isinstance(files, dict) or not all(type(one) in (bool, int) for one in files.values()):
        raise ValueError("files: expected digests with true, false or an offset of the log")
    if not isinstance(counts, dict) or not all(type(one) is int for one in counts.values()):
        raise ValueError("counts: expected digests with a number of messages")
    log_end = content.get("log_end")
    if log_end is not None and type(log_end) is not int:
        raise ValueError("log_end: expected an offset of the log")
    return ImportNote(files, counts, log_end)
