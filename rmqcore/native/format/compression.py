"""Bodies as their producers gave them: zlib, LZ4 and ZSTD, with a bound on what they grow to."""

from __future__ import annotations

import zlib
from importlib import import_module
from types import ModuleType

from rmqcore.errors import RmqCoreError
from rmqcore.native.format._numbers import SysFlag

#: Producers that are older than the bits which name a compression use zlib.
_ZLIB = (0, SysFlag.COMPRESSION_ZLIB)


def decompress(body: bytes, sys_flag: int, max_size: int) -> bytes:
    """A body without its compression.

    Args:
        body: as stored.
        sys_flag: of the message; names the compression.
        max_size: refuse a body that would grow beyond this many bytes.

    Raises:
        ValueError: it does not decompress, or grows beyond ``max_size``.
        RmqCoreError: LZ4 without the package that reads it; ZSTD, too, before Python 3.14.

    Source: RocketMQ common/compression/CompressorFactory.java.
    """
    if max_size < 1:
        raise ValueError(f"max_size={max_size}: expected 1 byte or more")
    kind = sys_flag & SysFlag.COMPRESSION_MASK
    if kind in _ZLIB:
        return _from_zlib(body, max_size)
    if kind == SysFlag.COMPRESSION_LZ4:
        return _from_lz4(body, max_size)
    if kind == SysFlag.COMPRESSION_ZSTD:
        return _from_zstd(body, max_size)
    raise ValueError(f"its compression type {kind:#x} is unknown")


def _from_zlib(body: bytes, max_size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(body, max_size)
    except zlib.error as error:
        raise ValueError(f"zlib: {error}") from None
    if stream.unconsumed_tail or not stream.eof:
        raise _unfinished("zlib", max_size)
    return plain


def _from_lz4(body: bytes, max_size: int) -> bytes:
    stream = _package("lz4.frame", "lz4").LZ4FrameDecompressor()
    try:
        plain: bytes = stream.decompress(body, max_length=max_size)
    except (RuntimeError, EOFError) as error:
        raise ValueError(f"lz4: {error}") from None
    if not stream.eof:
        raise _unfinished("lz4", max_size)
    return plain


def _from_zstd(body: bytes, max_size: int) -> bytes:
    try:
        own = import_module("compression.zstd")
    except ImportError:  # a Python before 3.14
        return _from_zstandard(body, max_size)
    stream = own.ZstdDecompressor()
    try:
        plain: bytes = stream.decompress(body, max_length=max_size)
    except own.ZstdError as error:
        raise ValueError(f"zstd: {error}") from None
    if not stream.eof:
        raise _unfinished("zstd", max_size)
    return plain


def _from_zstandard(body: bytes, max_size: int) -> bytes:
    zstandard = _package("zstandard", "zstandard")
    try:
        # a size in the frame outweighs max_output_size
        if zstandard.frame_content_size(body) > max_size:
            raise _unfinished("zstd", max_size)
        plain: bytes = zstandard.ZstdDecompressor().decompress(body, max_output_size=max_size)
    except zstandard.ZstdError as error:
        raise ValueError(f"zstd: {error}") from None
    return plain


def _package(module: str, name: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError:
        raise RmqCoreError(f"the body is compressed with {name}: install {name}") from None


def _unfinished(kind: str, max_size: int) -> ValueError:
    return ValueError(f"{kind}: it is cut short, or longer than {max_size} bytes")
