from typing import Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

HEADER_SIZE: Final[int]
INDEX_SLOT_SIZE: Final[int]
INDEX_ENTRY_SIZE: Final[int]

def java_string_hash(text: str) -> int: ...
def index_hash(key: str) -> int: ...
def index_file_size(slot_count: int, entry_count: int) -> int: ...
def put_key(
    buffer: Buffer,
    slot_count: int,
    entry_count: int,
    key: str,
    phy_offset: int,
    store_timestamp_ms: int,
) -> bool: ...
def put_keys(
    buffer: Buffer,
    slot_count: int,
    entry_count: int,
    key_hashes: Buffer | NDArray[np.int32],
    phy_offsets: Buffer | NDArray[np.int64],
    store_timestamps_ms: Buffer | NDArray[np.int64],
    start: int,
    stop: int,
) -> int: ...
def read_header(buffer: Buffer) -> tuple[int, int, int, int, int, int]: ...
def walk_chain(
    source: Buffer | int,
    slot_count: int,
    entry_count: int,
    key_hash: int,
    *,
    begin_ms: int = 0,
    end_ms: int = 0x7FFFFFFFFFFFFFFF,
    max_offsets: int = 64,
) -> tuple[list[int], int, bool]: ...
