"""What a store knows of its archive: up to where its log files are safe elsewhere.

The archiver writes it, after the manifest that names the files; retention reads it when it may
delete only what is archived. RocketMQ never reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmqcore.errors import CorruptConfigFileError
from rmqcore.files.config_file import ConfigFile, sealed, unsealed
from rmqcore.java.json import format_java_json, parse_java_json

if TYPE_CHECKING:
    from rmqcore.files.store_dir import StoreDir

ARCHIVE_NOTE_NAME = "archive.json"


def _file(directory: StoreDir) -> ConfigFile[tuple[str, int]]:
    return ConfigFile(directory.config / ARCHIVE_NOTE_NAME, _decoded, directory.check_there)


def load_archive_note(directory: StoreDir) -> tuple[str, int] | None:
    """(URL of the archive, physical offset up to which its manifest names files).

    None for a store that was never archived, or when it cannot be read.
    """
    try:
        return _file(directory).load()
    except CorruptConfigFileError:
        # nothing is sure, so nothing is said to be safe; the next pass of the archiver writes it
        return None


def archived_end(directory: StoreDir) -> int:
    """Physical offset up to which log files are archived; 0 for none."""
    note = load_archive_note(directory)
    return 0 if note is None else note[1]


def store_archive_note(directory: StoreDir, url: str, end: int) -> None:
    """Write down how far the archive reaches.

    Args:
        directory: of the store.
        url: of the archive.
        end: physical offset behind the last byte that the archive has.

    Raises:
        OSError: it could not be written; the former note counts.

    Durability: disk when it returns.
    """
    _file(directory).store(sealed(format_java_json({"url": url, "end": end})))


def shorten_archive_note(directory: StoreDir, log_end: int) -> None:
    """Note that nothing behind the end of a log is archived: what is put there is not.

    Args:
        directory: of the store.
        log_end: where its log ends, which an opening, or a repair, may have made shorter.

    Raises:
        OSError: it could not be written.
    """
    note = load_archive_note(directory)
    if note is not None and note[1] > log_end:
        store_archive_note(directory, note[0], log_end)


def _decoded(text: str) -> tuple[str, int]:
    content = parse_java_json(unsealed(text))
    if not isinstance(content, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - the text is wrong
    url, end = content.get("url"), content.get("end")
    if not isinstance(url, str) or type(end) is not int or end < 0:
        raise ValueError("url and end are missing")
    return url, end
