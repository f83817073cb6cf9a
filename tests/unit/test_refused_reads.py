"""What a disk refuses to give, as of a bad sector, is told with the name of the file."""

import errno
import os
from pathlib import Path

import pytest

import rmqcore
from rmqcore.doctor import verify
from rmqcore.metaq import MessageStore, MetaConfig, SystemConfig
from rmqcore.scan.dataset import StoreDataset

pytestmark = pytest.mark.engine


@pytest.fixture
def refuse(monkeypatch):
    """`refuse(path)`: reads of this file, or of those below it, are refused from now on."""
    refused = []

    def ask(call):
        def read(fd, *rest):
            path = Path(f"/proc/self/fd/{fd}").readlink()
            if any(path.is_relative_to(one) for one in refused):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(fd, *rest)

        return read

    monkeypatch.setattr(os, "pread", ask(os.pread))
    monkeypatch.setattr(os, "preadv", ask(os.preadv))
    return refused.append


@pytest.fixture
def written(store_path):
    with rmqcore.open_store(store_path) as store:
        for number in range(30):
            store.put("T", b"%d" % number, keys=f"k{number}")
    return store_path


def opened(read):
    def reads(path):
        with rmqcore.open_store(path, mode="r") as store:
            read(store)

    return reads


@pytest.mark.parametrize(
    ("part", "read"),
    [
        ("commitlog", opened(lambda store: list(store.messages()))),
        ("commitlog", opened(lambda store: store.get_message("T", 0, 0))),
        ("consumequeue/T/0", opened(lambda store: store.get_message("T", 0, 0))),
        ("index", opened(lambda store: store.query_message("T", "k3"))),
        ("commitlog", verify),
        ("consumequeue/T/0", verify),
        ("index", verify),
        ("commitlog", lambda path: StoreDataset(path).to_table()),
    ],
)
def test_a_read_that_the_disk_refuses_names_the_file(written, refuse, part, read):
    refuse(written / part)
    with pytest.raises(OSError, match="Input/output error") as caught:
        read(written)
    assert Path(caught.value.filename).is_relative_to(written / part)


def test_a_partition_that_the_disk_refuses_to_give_is_named(tmp_path, refuse):
    config = MetaConfig(SystemConfig(data_path=str(tmp_path), unflush_threshold=0), ["t"])
    with MessageStore("t", 0, config) as store:
        store.append(1, b"x")
        (segment,) = store.segments
        refuse(segment.messages.path)
        with pytest.raises(OSError, match="Input/output error") as caught:
            list(store.messages())
        assert caught.value.filename == str(segment.messages.path)
