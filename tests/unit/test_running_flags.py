"""RunningFlags: which bit blocks what, and the sentence that says so."""

from __future__ import annotations

import threading

import pytest

from rmqcore.services.running_flags import RunningFlag, RunningFlags

pytestmark = pytest.mark.logic

BLOCKS = {
    # flag: (bit, puts), RocketMQ's RunningFlags.java, and one behind them
    RunningFlag.NOT_READABLE: (0x01, False),
    RunningFlag.NOT_WRITEABLE: (0x02, True),
    RunningFlag.WRITE_LOGICS_QUEUE_ERROR: (0x04, True),
    RunningFlag.WRITE_INDEX_FILE_ERROR: (0x08, True),
    RunningFlag.DISK_FULL: (0x10, True),
    RunningFlag.FENCED: (0x20, True),
    RunningFlag.LOGIC_DISK_FULL: (0x40, True),
    RunningFlag.POOL_DISK_FULL: (0x80, True),
}


def test_a_new_store_is_free():
    flags = RunningFlags()
    assert flags.writeable
    assert flags.bits == 0
    assert flags.why_not_writable() is None


@pytest.mark.parametrize("flag", RunningFlag)
def test_each_flag_blocks_puts_as_in_rocketmq(flag):
    bit, puts = BLOCKS[flag]
    flags = RunningFlags()
    assert flags.raise_flag(flag)
    assert flag == bit
    assert flag in flags
    assert flags.writeable is not puts
    assert bool(flags.why_not_writable()) is puts
    assert flags.clear_flag(flag)
    assert flags.bits == 0
    assert flags.writeable


def test_the_first_reason_stays():
    flags = RunningFlags()
    assert flags.raise_flag(RunningFlag.NOT_WRITEABLE, "the disk did not answer")
    assert not flags.raise_flag(RunningFlag.NOT_WRITEABLE, "something later")
    assert flags.why_not_writable() == "the disk did not answer"


def test_every_reason_is_told():
    flags = RunningFlags()
    flags.raise_flag(RunningFlag.DISK_FULL, "97 % of the disk is in use")
    flags.raise_flag(RunningFlag.NOT_WRITEABLE, "fsync failed")
    flags.raise_flag(RunningFlag.NOT_READABLE, "of reads only")
    assert flags.why_not_writable() == "fsync failed; 97 % of the disk is in use"


def test_one_flag_down_leaves_the_others_up():
    flags = RunningFlags()
    flags.raise_flag(RunningFlag.DISK_FULL)
    flags.raise_flag(RunningFlag.FENCED)
    assert flags.clear_flag(RunningFlag.DISK_FULL)
    assert not flags.clear_flag(RunningFlag.DISK_FULL)
    assert not flags.writeable
    assert flags.bits == RunningFlag.FENCED


def test_set_flag_tells_whether_anything_changed():
    flags = RunningFlags()
    assert flags.set_flag(RunningFlag.DISK_FULL, True, "full")
    assert not flags.set_flag(RunningFlag.DISK_FULL, True, "full")
    assert flags.set_flag(RunningFlag.DISK_FULL, False)
    assert not flags.set_flag(RunningFlag.DISK_FULL, False)


@pytest.mark.engine
def test_threads_do_not_lose_each_others_flags():
    flags = RunningFlags()

    def flip(flag: RunningFlag) -> None:
        for _ in range(500):
            flags.clear_flag(flag)
            flags.raise_flag(flag)

    threads = [threading.Thread(target=flip, args=(flag,)) for flag in RunningFlag]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert flags.bits == 0xFF
