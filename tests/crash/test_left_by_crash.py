"""What a crash leaves of queues and index is kept where it is right, and nothing else of it."""

import shutil

import pytest
from children import die, run_child
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import rmqcore
from crash.small_store import SETTINGS, check_against_log, numbers_in, put

pytestmark = pytest.mark.process

#: stands for a page: so many bytes of a file are on the disk together, or none of them
PAGE = 64
COUNT = 70
EARLIER = 52


def killed(path, count, copy_at=None, copy_to=None):
    def write(_):
        store = rmqcore.open_store(path, **SETTINGS)
        for number in range(count):
            put(store, number)
            if number == copy_at:
                store.query_message("T0", "k0")
                # services rename files of config/ beside this
                shutil.copytree(path, copy_to, ignore=shutil.ignore_patterns("config"))
        store.query_message("T0", "k0")
        die()

    assert run_child(write)[0] < 0


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """(a killed store, the same store a while before)."""
    path = tmp_path_factory.mktemp("left")
    killed(path / "store", COUNT, EARLIER, path / "earlier")
    return path / "store", path / "earlier"


def derived_files(path):
    return sorted(
        file
        for part in ("consumequeue", "index")
        for file in (path / part).rglob("*")
        if file.is_file()
    )


def check_opened(path):
    with rmqcore.open_store(path, **SETTINGS) as store:
        assert not store.recovery_report.clean_shutdown
        assert numbers_in(store) == list(range(COUNT))
        check_against_log(store)
    with rmqcore.open_store(path, **SETTINGS) as store:
        assert store.recovery_report.findings == []
        put(store, COUNT)
        check_against_log(store)


def test_files_that_agree_are_kept(tmp_path, left):
    copy = shutil.copytree(left[0], tmp_path / "copy")
    before = {file: file.stat().st_ino for file in derived_files(copy)}
    assert len(list((copy / "index").iterdir())) > 3
    check_opened(copy)
    after = {file: file.stat().st_ino for file in derived_files(copy)}
    assert before.items() <= after.items()


def page_of(file, number):
    size = file.stat().st_size
    at = number * PAGE % size // PAGE * PAGE
    return at, min(PAGE, size - at)


@st.composite
def damages(draw):
    """Pages of derived files that are zero, as they were before, or full of something else."""
    page = st.tuples(
        st.integers(0, 10**6),
        st.integers(0, 10**6),
        st.sampled_from(["zero", "old", "byte", "truncate"]),
        st.integers(0, PAGE - 1),
    )
    return draw(st.lists(page, min_size=1, max_size=6))


def harm(path, earlier, damage):
    for which, number, how, position in damage:
        files = derived_files(path)
        if not files:
            return
        file = files[which % len(files)]
        at, size = page_of(file, number)
        data = bytearray(file.read_bytes())
        old = earlier / file.relative_to(path)
        if how == "zero":
            data[at : at + size] = bytes(size)
        elif how == "old":
            kept = old.read_bytes() if old.exists() else bytes(len(data))
            data[at : at + size] = kept[at : at + size]
        elif how == "byte":
            data[at + position % size] ^= 0x41
        elif position == 0:
            file.unlink()
            continue
        file.write_bytes(data)


@example([(0, 0, "old", 0)])
@example([(8, 1, "byte", 40)])
@given(damage=damages())
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_damage_is_told_and_made_good(tmp_path, left, damage):
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(left[0], copy)
    harm(copy, left[1], damage)
    check_opened(copy)


@pytest.mark.parametrize("how", ["zero", "old"])
def test_every_page_of_the_index(tmp_path, left, how):
    path, earlier = left
    for which, file in enumerate(derived_files(path)):
        if file.parent.name != "index":
            continue
        for number in range(0, file.stat().st_size // PAGE + 1, 1):
            copy = shutil.copytree(path, tmp_path / f"{which}-{number}")
            harm(copy, earlier, [(which, number, how, 0)])
            check_opened(copy)
            shutil.rmtree(copy)


def test_the_log_lost_what_the_index_knows(tmp_path, left):
    """A power cut may take the log's end and leave the index entries of it."""
    copy = shutil.copytree(left[0], tmp_path / "copy")
    log = sorted((copy / "commitlog").iterdir())
    with rmqcore.open_store(left[1], mode="r") as store:
        end = store.max_phy_offset
    for file in log:
        start = int(file.name)
        if start + file.stat().st_size > end:
            data = file.read_bytes()
            keep = max(0, end - start)
            file.write_bytes(data[:keep] + bytes(len(data) - keep))
    with rmqcore.open_store(copy, **SETTINGS) as store:
        assert numbers_in(store) == list(range(EARLIER + 1))
        check_against_log(store)
        put(store, EARLIER + 1)
        check_against_log(store)


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_ends_with_a_file_ends_there_after_an_opening(tmp_path, clean):
    """A slave may have the end-of-file record, too, and must not be ahead of its master."""
    path = tmp_path / "store"

    def write(tell):
        store = rmqcore.open_store(path, **SETTINGS)
        for number in range(9):
            put(store, number)
        store.parts.files.writer.roll(store.log.queue.files[-1].file_from_offset)
        tell(store.max_phy_offset)
        if not clean:
            die()
        store.close()

    _, (end,) = run_child(write)
    assert end % SETTINGS["mapped_file_size_commit_log"] == 0
    with rmqcore.open_store(path, mode="r") as store:
        assert store.max_phy_offset == end
    for number in range(9, 11):
        with rmqcore.open_store(path, **SETTINGS) as store:
            assert store.max_phy_offset == end
            put(store, number)
            end = store.max_phy_offset
            assert numbers_in(store) == list(range(number + 1))
            check_against_log(store)
