from typing_extensions import Buffer

def scan_puts(
    buffer: Buffer, max_line: int, max_size: int
) -> tuple[list[tuple[str, int, int, int, int, bytes]], int]: ...
