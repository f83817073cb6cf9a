"""A store opened for reading ends where its last record ends, whatever empty files lie behind."""

import pytest

import rmqcore
from rmqcore.errors import CorruptConsumeQueueError

pytestmark = pytest.mark.logic


@pytest.mark.parametrize("release", ["5.5.0", "4.9.7"])
def test_empty_files_behind_the_last_record_are_not_counted(golden_store, release):
    golden = golden_store(release, "basic")
    size = golden.manifest["mappedFileSizeCommitLog"]
    last = max(int(path.name) for path in (golden.path / "commitlog").iterdir())
    with rmqcore.open_store(golden.path, mode="r") as store:
        end = store.max_phy_offset
        count = sum(1 for _ in store.messages())
    for number in (1, 2):
        (golden.path / "commitlog" / f"{last + number * size:020d}").write_bytes(bytes(size))
    with rmqcore.open_store(golden.path, mode="r") as store:
        assert store.max_phy_offset == end
        assert sum(1 for _ in store.messages()) == count


@pytest.mark.parametrize("size", [0, 7, 20, 500, 995])
def test_a_consume_queue_file_that_was_cut_short_ends_the_queue(golden_store, size):
    golden = golden_store("5.5.0", "basic")
    path = sorted((golden.path / "consumequeue" / "TopicA" / "0").iterdir())[-1]
    first = int(path.name) // 20
    used = len(path.read_bytes().rstrip(b"\0")) // 20
    path.write_bytes(path.read_bytes()[:size])
    with rmqcore.open_store(golden.path, mode="r") as store:
        assert first <= store.max_queue_offset("TopicA", 0) <= first + min(size // 20, used + 1)


@pytest.mark.parametrize("release", ["5.5.0", "4.9.7"])
@pytest.mark.parametrize("kept", [0, 20])
def test_zeros_in_front_of_a_file_with_units_do_not_end_a_queue(golden_store, release, kept):
    """A writer begins a file when the one before it is full; RocketMQ notes nowhere where it is."""
    golden = golden_store(release, "basic")
    files = sorted((golden.path / "consumequeue" / "TopicA" / "0").iterdir())
    data = files[-2].read_bytes()
    files[-2].write_bytes(data[:kept].ljust(len(data), b"\0"))
    with (
        rmqcore.open_store(golden.path, mode="r") as store,
        pytest.raises(CorruptConsumeQueueError, match=files[-2].name),
    ):
        store.max_queue_offset("TopicA", 0)
