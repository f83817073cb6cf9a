"""Bodies compressed with Zstandard, by Python 3.14's own module or, before that, zstandard."""

import sys

import pytest

from rmqcore.native.format._numbers import SysFlag
from rmqcore.native.format.compression import decompress

if sys.version_info >= (3, 14):
    from compression.zstd import compress
else:
    import zstandard

    compress = zstandard.ZstdCompressor().compress

pytestmark = pytest.mark.logic

PLAIN = b"order 17 " * 1000
ZSTD = SysFlag.COMPRESSION_ZSTD


def test_a_body_of_zstandard_is_read_up_to_a_size():
    body = compress(PLAIN)
    assert decompress(body, ZSTD, len(PLAIN)) == PLAIN
    with pytest.raises(ValueError, match=f"longer than {len(PLAIN) - 1} bytes"):
        decompress(body, ZSTD, len(PLAIN) - 1)


@pytest.mark.parametrize("body", [b"", b"nonsense", compress(PLAIN)[:-4]])
def test_what_is_no_whole_body_of_zstandard_is_refused(body):
    with pytest.raises(ValueError, match="zstd: "):
        decompress(body, ZSTD, len(PLAIN))
