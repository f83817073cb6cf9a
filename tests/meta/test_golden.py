"""The packed golden stores are the ones that SHA256SUMS names, and unpack whole."""

import pytest

from golden.stores import changed_archives, packed_stores

pytestmark = pytest.mark.engine


def test_archives_agree_with_their_sums():
    assert not changed_archives()


def test_every_store_of_both_releases_is_packed(golden_store):
    assert len(packed_stores()) == 21
    for release, name in packed_stores():
        golden = golden_store(release, name)
        assert golden.manifest["store"] == name
        assert golden.manifest["writtenBy"].endswith(release)
        folders = {path.name for path in golden.path.iterdir() if path.is_dir()}
        assert folders >= {"commitlog", "consumequeue", "index"}
        assert golden.conf.read_text("ascii").startswith("mappedFileSizeCommitLog=")
