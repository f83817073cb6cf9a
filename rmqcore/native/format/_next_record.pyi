from enum import IntEnum
from typing import Final

from typing_extensions import Buffer

RECORD_HEAD_SIZE: Final[int]

class ScanStatus(IntEnum):
    OK = 0
    BLANK = 1
    EMPTY = 2
    CAPACITY = 3
    PARTIAL = 4
    TRUNCATED = -1
    BAD_MAGIC = -2
    BAD_SIZE = -3
    BAD_CRC = -4
    BAD_OFFSET = -5

def next_record(
    buffer: Buffer,
    at: int,
    stop: int,
    *,
    base_offset: int,
    file_end: int,
    verify_crc: bool = False,
    verify_crc_property: bool = False,
) -> tuple[ScanStatus, int, int]: ...
def head_says(buffer: Buffer) -> tuple[int, int]: ...
def lacks_size_only(buffer: Buffer, *, base_offset: int) -> bool: ...
def find_head(buffer: Buffer, at: int, stop: int, *, base_offset: int) -> int: ...
