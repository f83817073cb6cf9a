"""A plan changes nothing, a repair saves every whole record under its number, undo brings all back.

On stores that Apache RocketMQ wrote, damaged in each way there is.
"""

import dataclasses
import multiprocessing
import os
import random
import shutil
from pathlib import Path

import pytest
from doctor.damage import (
    DAMAGES,
    assert_found,
    known_messages,
    last_used,
    log_files,
    overwrite,
    some_damage,
    used,
    whole,
    zeroed_region,
)

import rmqcore
from golden.check import digest_tree
from golden.stores import RELEASES, packed_stores
from rmqcore import doctor
from rmqcore._codec import encode_record
from rmqcore.config import load_config
from rmqcore.doctor.covering_records import LOST_FLAG, LOST_PROPERTY
from rmqcore.errors import ConfigError, StoreError, StoreLockedError
from rmqcore.files.timer_check import TIMER_TOPIC, TimerCheck, TimerProgress
from rmqcore.java.json import parse_java_json
from rmqcore.message import Message

pytestmark = pytest.mark.engine

ALL = packed_stores()
DUMPS = Path(__file__).parents[1] / "unit" / "broker_configs"
NOBODY = 65534
EACH = [
    pytest.param(release, damage, id=f"{damage.__name__}-{release}")
    for damage in DAMAGES
    for release in RELEASES
]


def file_size(golden):
    return load_config(golden.conf).mapped_file_size_commit_log


def stamps(root):
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")}


def assert_repaired(golden, known, intact=()):
    """The whole round: plan, repair, undo."""
    store = golden.path
    left = whole(store, known, file_size(golden))
    before, times = digest_tree(store), stamps(store)
    plan = doctor.plan(store, config=golden.conf)
    assert (digest_tree(store), stamps(store)) == (before, times)
    assert plan.steps
    report = doctor.repair(store, config=golden.conf, plan=plan)
    assert report.left == []
    assert doctor.plan(store, config=golden.conf).clean
    assert doctor.verify(store, config=golden.conf).clean
    assert_found(store, left)
    lost = {(one.topic, one.queue_id, one.queue_offset) for one in report.plan.lost}
    assert not lost & {(one.topic, one.queue_id, one.queue_offset) for one in left}
    assert doctor.undo(store).changes > 0
    assert digest_tree(store) == before
    # what the opening has cut off a torn log is kept
    assert [kept.name for kept in store.glob("doctor/*") if not kept.name.startswith("cut-")] == []
    return plan


@pytest.mark.parametrize(("release", "damage"), EACH)
def test_each_damage_is_repaired_and_the_repair_undone(golden_store, release, damage):
    golden = golden_store(release, "basic")
    known = known_messages(golden.path)
    damage(golden.path)
    assert_repaired(golden, known)


def test_a_brokers_dumped_configuration_is_that_of_its_store(golden_store, tmp_path):
    golden = golden_store("4.9.7", "basic")
    conf = tmp_path / "dumped.conf"
    conf.write_text((DUMPS / "4.9.7.txt").read_text("utf-8") + golden.conf.read_text("utf-8"))
    known = known_messages(golden.path)
    zeroed_region(golden.path)
    assert_repaired(dataclasses.replace(golden, conf=conf), known)


@pytest.mark.parametrize("store", ALL, ids="-".join)
def test_every_kind_of_store_is_repaired(golden_store, store):
    golden = golden_store(*store)
    if store[1] == "crashed":
        rmqcore.open_store(golden.path, config=golden.conf).close()
    assert doctor.plan(golden.path).clean
    known = known_messages(golden.path)
    zeroed_region(golden.path)
    assert_repaired(golden, known)


@pytest.mark.parametrize("release", RELEASES)
def test_what_a_crash_of_rocketmq_has_left_is_repaired(golden_store, release):
    golden = golden_store(release, "crashed")
    plan = assert_repaired(golden, [])
    assert [step.kind.value for step in plan.steps] == [
        "cut-tail",
        "rebuild-queues",
        "rebuild-index",
        "checkpoint",
        "clear-abort",
    ]


def rounds(golden_store, seed, count):
    for number in range(count):
        rng = random.Random(seed + number)
        golden = golden_store(rng.choice(RELEASES), "basic")
        known = known_messages(golden.path)
        done = some_damage(golden.path, rng)
        if not doctor.plan(golden.path, config=golden.conf).clean:
            try:
                assert_repaired(golden, known)
            except BaseException as error:
                error.add_note(f"seed {seed + number}: {done}")
                raise
        golden.path.parent.rename(golden.path.parent.with_name(f"done-{number}"))


def test_random_damages_are_repaired(golden_store, seed):
    rounds(golden_store, seed, 2)


@pytest.mark.storm
def test_many_random_damages_are_repaired(golden_store, seed):
    rounds(golden_store, seed, 100)


def test_an_intact_store_is_left_alone(golden_store):
    store = golden_store("5.5.0", "basic").path
    before = digest_tree(store)
    report = doctor.repair(store)
    assert report.clean
    assert report.journal is None
    assert doctor.undo(store).changes == 0
    assert digest_tree(store) == before


@pytest.fixture
def damaged(golden_store):
    golden = golden_store("5.5.0", "basic")
    zeroed_region(golden.path)
    return golden.path


def by_nobody(work):
    """What some work comes to in a process of a user who may change nothing."""
    with multiprocessing.get_context("fork").Pool(1, initializer=become_nobody) as pool:
        return pool.apply(work)


def become_nobody():
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def plan_here():
    with pytest.raises(PermissionError):
        Path("stray").touch()
    return len(doctor.plan(Path()).steps)


@pytest.mark.process
def test_a_plan_is_made_of_a_directory_that_cannot_be_written(damaged, monkeypatch):
    paths = [damaged, *damaged.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    # the directories above are closed to others
    monkeypatch.chdir(damaged)
    try:
        assert by_nobody(plan_here) > 0
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_what_root_repairs_stays_its_owners(damaged):
    log_files(damaged)[1].unlink()
    for path in (damaged, *damaged.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    doctor.repair(damaged)
    roots = {path for path in damaged.rglob("*") if path.stat().st_uid != NOBODY}
    assert {path.relative_to(damaged).parts[0] for path in roots} == {"doctor"}


def test_config_that_no_store_opens_with_is_taken_out(golden_store):
    path = golden_store("5.5.0", "basic").path
    config = path / "config"
    config.mkdir(exist_ok=True)
    (config / "topics.json").write_text("[1]")
    (config / "consumerOffset.json").write_text('{"offsetTable":{"T@g":{"0":"x"}}}')
    (config / "delayOffset.json").write_text('{"offsetTable":{"1":-3,"2":0}}')
    (config / "consumerLeases.log").write_bytes(b"\0\xff" * 20)
    (config / "subscriptionGroup.json").symlink_to("missing")
    before = digest_tree(path)
    assert doctor.repair(path).clean
    content = parse_java_json((config / "delayOffset.json").read_text())
    assert content["offsetTable"] == {"2": 0}
    rmqcore.open_store(shutil.copytree(path, path.with_name("copy"), symlinks=True)).close()
    doctor.undo(path)
    assert digest_tree(path) == before
    assert (config / "subscriptionGroup.json").is_symlink()


def test_what_a_last_file_held_that_is_missing_is_named(golden_store):
    golden = golden_store("5.5.0", "basic")
    last = last_used(golden.path)
    known = [one for one in known_messages(golden.path) if one.phy_offset >= int(last.name)]
    last.unlink()
    lost = doctor.plan(golden.path).lost
    assert {(one.topic, one.queue_id, one.queue_offset) for one in lost} == {
        (one.topic, one.queue_id, one.queue_offset) for one in known
    }


def test_what_is_lost_is_named_and_its_place_kept(damaged):
    report = doctor.repair(damaged)
    named = [one for one in report.plan.lost if not one.topic.startswith("%LMQ%")]
    assert named
    with rmqcore.open_store(damaged, mode="r") as store:
        for one in named:
            got = store.get_message(one.topic, one.queue_id, one.queue_offset, max_messages=1)
            (stands,) = got.messages
            assert stands.flag == LOST_FLAG
            assert stands.properties in ({}, {LOST_PROPERTY: str(one.size)})
            assert not stands.body.strip(b"\0")
            assert (stands.queue_offset, stands.phy_offset) == (one.queue_offset, one.phy_offset)


def test_a_plan_survives_json_and_is_refused_when_the_store_has_changed(damaged):
    plan = doctor.RepairPlan.from_dict(doctor.plan(damaged).to_dict())
    assert plan == doctor.plan(damaged)
    (damaged / "config" / "topics.json").parent.mkdir(exist_ok=True)
    (damaged / "config" / "topics.json").write_text("{}")
    with pytest.raises(StoreError, match="not as it was"):
        doctor.repair(damaged, plan=plan)
    with pytest.raises(StoreError, match="no plan"):
        doctor.RepairPlan.from_dict({})
    assert not (damaged / "doctor").exists()


def test_a_last_log_file_that_is_missing_in_front_of_an_empty_one(golden_store):
    golden = golden_store("5.5.0", "basic")
    last = last_used(golden.path)
    size = file_size(golden)
    (last.parent / f"{int(last.name) + size:020d}").write_bytes(bytes(size))
    known = known_messages(golden.path)
    last.unlink()
    plan = assert_repaired(golden, known)
    assert plan.steps[0].kind is doctor.StepKind.REMOVE_FILE


def test_what_an_opening_does_after_a_repair_is_in_order(store_path):
    sizes = {"mapped_file_size_commit_log": 1 << 14, "mapped_file_size_consume_queue": 320}
    with rmqcore.open_store(store_path, config=sizes) as store:
        for number in range(6):
            store.put("T", b"before")
            store.put("rmq_sys_state", b"%d" % number)
            store.put("T", b"behind")
    at = max(one.phy_offset for one in known_messages(store_path) if one.topic != "T")
    overwrite(log_files(store_path)[0], at + 4, bytes(4))
    assert doctor.repair(store_path).clean
    rmqcore.open_store(store_path).close()
    assert doctor.verify(store_path).clean
    with rmqcore.open_store(store_path) as store:
        # a number is given once, also that of a message that is lost
        assert store.put("rmq_sys_state", b"next").queue_offset == 6


def test_a_plan_of_other_places_changes_nothing(damaged, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    good = doctor.plan(damaged)
    before = digest_tree(damaged)
    cover = next(step for step in good.steps if step.kind is doctor.StepKind.COVER)
    for wrong in (
        dataclasses.replace(cover, kind=doctor.StepKind.REMOVE_FILE, path=victim),
        dataclasses.replace(cover, kind=doctor.StepKind.DROP_CONFIG, path=Path("../victim")),
        dataclasses.replace(cover, kind=doctor.StepKind.REMOVE_FILE, path=Path()),
        dataclasses.replace(cover, kind=doctor.StepKind.REMOVE_FILE, path=Path("config/..")),
        dataclasses.replace(cover, path=Path("config/topics.json")),
        dataclasses.replace(cover, start=cover.start - (1 << 30)),
        dataclasses.replace(cover, stop=cover.stop + (1 << 30)),
    ):
        with pytest.raises(StoreError, match="plan is damaged"):
            doctor.repair(damaged, plan=dataclasses.replace(good, steps=[wrong]))
    assert victim.read_bytes() == b"mine"
    assert digest_tree(damaged) == before
    assert doctor.repair(damaged / ".." / damaged.name, plan=good).clean


def test_what_is_no_plan_is_refused():
    for text in (b"{", b"[]", b"[" * 100_000, b"\xff", b'{"version":1,"path":3}'):
        with pytest.raises(StoreError, match=r"no plan|plan is damaged"):
            doctor.RepairPlan.from_json(text)


def test_a_log_elsewhere_is_undone_without_being_told_where(damaged):
    log = damaged.with_name("elsewhere")
    (damaged / "commitlog").rename(log)
    before = digest_tree(log)
    doctor.repair(damaged, config={"storePathCommitLog": str(log)})
    assert digest_tree(log) != before
    doctor.undo(damaged)
    assert digest_tree(log) == before


def test_a_size_that_is_not_the_logs_is_refused(damaged):
    for size in (1 << 30, 1 << 15):
        with pytest.raises(ConfigError, match="the store's files have 65536 bytes"):
            doctor.plan(damaged, config={"mappedFileSizeCommitLog": size})


def test_a_store_that_is_open_is_planned_but_not_repaired(tmp_path):
    with rmqcore.open_store(tmp_path / "store") as store:
        store.put("T", b"x")
        store.flush()
        plan = doctor.plan(store.path)
        assert plan.live
        assert plan.clean
        with pytest.raises(StoreLockedError, match="another handle of this process"):
            doctor.repair(store.path)


def test_a_repair_without_a_plan_does_not_take_its_own_lock_for_a_writer(store_path):
    with rmqcore.open_store(store_path) as store:
        store.put("T", b"x")
    known = known_messages(store_path)
    shutil.rmtree(store_path / "consumequeue")
    assert doctor.repair(store_path).clean
    assert_found(store_path, known)


def test_a_backup_of_offsets_that_takes_the_files_place_is_set_to_the_ends(store_path):
    with rmqcore.open_store(store_path) as store:
        store.put("T", b"x")
    path = store_path / "config" / "consumerOffset.json"
    path.with_name(path.name + ".bak").write_text('{"offsetTable":{"T@g":{0:99}}}')
    for damage in (lambda: path.write_text("{"), path.unlink):
        damage()
        assert doctor.repair(store_path).clean
        assert parse_java_json(path.read_text())["offsetTable"] == {"T@g": {"0": 1}}


def test_timer_messages_that_are_put_next_do_not_count_as_delivered(store_path):
    with rmqcore.open_store(store_path) as store:
        for _ in range(3):
            store.put(TIMER_TOPIC, b"waits")
    timer = TimerCheck(store_path / "config")
    for progress in (TimerProgress(9, 12, 1000, 2), TimerProgress(1, 7, 1000, 2)):
        timer.store(progress, 0)
        before = digest_tree(store_path)
        plan = doctor.plan(store_path)
        assert plan.steps[0].path == Path("config/timercheck")
        assert doctor.repair(store_path, plan=plan).clean
        assert timer.load() == TimerProgress(min(progress.first_pending, 3), 3, 1000, 2)
        doctor.undo(store_path)
        assert digest_tree(store_path) == before
    timer.store(TimerProgress(1, 3, 1000, 2), 0)
    assert doctor.plan(store_path).clean


def test_undo_does_not_take_back_what_was_put_since(damaged):
    doctor.repair(damaged)
    rmqcore.open_store(damaged).close()
    with pytest.raises(StoreError, match="has changed since the repair"):
        doctor.undo(damaged)


def test_log_files_keep_the_time_by_which_retention_goes(damaged):
    times = {path: path.stat().st_mtime_ns for path in log_files(damaged)}
    doctor.repair(damaged)
    assert {path: path.stat().st_mtime_ns for path in log_files(damaged)} == times


def test_a_store_without_any_whole_record_names_every_message_as_lost(store_path):
    with rmqcore.open_store(store_path, mapped_file_size_commit_log=1 << 14) as store:
        for number in range(20):
            store.put("T", b"%d" % number)
    conf = {"mapped_file_size_commit_log": 1 << 14}
    for damage in (
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(bytes(1 << 14)),
    ):
        damage(log_files(store_path)[0])
        plan = doctor.plan(store_path, config=conf)
        assert [one.queue_offset for one in plan.lost] == list(range(20))


def test_files_of_another_length_than_configured_are_made_again(golden_store):
    golden = golden_store("5.5.0", "small")
    queues = sorted((golden.path / "consumequeue").glob("*/*/*"))
    (index, *_) = sorted((golden.path / "index").iterdir())
    known = known_messages(golden.path)
    for path in queues[1:]:
        path.unlink()
    os.truncate(queues[0], 90)
    for path in sorted((golden.path / "index").iterdir())[1:]:
        path.unlink()
    os.truncate(index, 100)
    findings = doctor.verify(golden.path, config=golden.conf).findings
    assert {finding.part for finding in findings} >= {"consume queue", "index"}
    assert_repaired(golden, known)
    doctor.repair(golden.path, config=golden.conf)
    assert {path.stat().st_size for path in golden.path.glob("consumequeue/*/*/*")} == {
        load_config(golden.conf).mapped_file_size_consume_queue
    }


def test_sizes_on_which_the_files_agree_are_not_overruled(golden_store):
    golden = golden_store("5.5.0", "basic")
    for wrong in ({"mappedFileSizeConsumeQueue": 6000}, {"maxHashSlotNum": 9, "maxIndexNum": 90}):
        with pytest.raises(ConfigError, match="files"):
            doctor.plan(golden.path, config=wrong)


@pytest.mark.parametrize("content", [b"", b"{", b'{"deletedTopics":{}}', b"\xff"])
def test_notes_of_deleted_topics_that_cannot_be_read_are_taken_out(store_path, content):
    with rmqcore.open_store(store_path) as store:
        for topic in ("Gone", "Stays"):
            store.put(topic, b"x")
        store.delete_topic("Gone")
    path = store_path / "config" / "deletedTopics.json"
    path.with_name(path.name + ".bak").unlink(missing_ok=True)
    path.write_bytes(content)
    before = digest_tree(store_path)
    assert not doctor.verify(store_path).clean
    assert doctor.repair(store_path).clean
    assert not path.exists()
    rmqcore.open_store(shutil.copytree(store_path, store_path.with_name("copy"))).close()
    doctor.undo(store_path)
    assert digest_tree(store_path) == before


def test_what_is_lost_of_a_topic_that_was_made_again_is_named_and_its_place_kept(store_path):
    with rmqcore.open_store(store_path) as store:
        for _ in range(9):
            store.put("T", b"before")
        store.delete_topic("T")
        places = [store.put("T", b"again").phy_offset for _ in range(6)]
    known = [one for one in known_messages(store_path) if one.queue_offset in (1, 3, 5)]
    # the records with number 0 and 2, and the queue that the record with number 4 names
    for place in places[0], places[2]:
        overwrite(log_files(store_path)[0], place + 4, bytes(4))
    overwrite(log_files(store_path)[0], places[4] + 13, b"\x40")
    report = doctor.repair(store_path)
    assert [(one.topic, one.queue_offset) for one in report.plan.lost] == [
        ("T", 0),
        ("T", 2),
        ("T", 4),
    ]
    assert report.clean
    assert_found(store_path, known)


def test_an_empty_file_behind_the_log_is_told_and_taken_out(golden_store):
    golden = golden_store("4.9.7", "basic")
    last = log_files(golden.path)[-1]
    (last.parent / f"{int(last.name) + file_size(golden):020d}").touch()
    assert not doctor.verify(golden.path, config=golden.conf).clean
    assert_repaired(golden, known_messages(golden.path))


@pytest.mark.parametrize("text", [b"", b"lock", b"4711 of another release"])
def test_the_lock_file_is_byte_for_byte_what_it_was(damaged, text):
    lock = damaged / "lock"
    lock.write_bytes(text)
    before = digest_tree(damaged)
    doctor.repair(damaged)
    doctor.undo(damaged)
    assert lock.read_bytes() == text
    assert digest_tree(damaged) == before


def test_the_lock_file_of_a_store_without_damage_is_left_alone(golden_store):
    path = golden_store("4.9.7", "basic").path
    (path / "lock").write_bytes(b"4711")
    assert doctor.repair(path).journal is None
    assert (path / "lock").read_bytes() == b"4711"


def test_garbage_among_units_of_expired_messages_is_not_taken_over(golden_store):
    golden = golden_store("4.9.7", "aged")
    queue = golden.path / "consumequeue" / "TopicOld" / "0"
    known = known_messages(golden.path)
    overwrite(sorted(queue.iterdir())[0], 20, b"\x7f" * 30)
    overwrite(sorted(queue.iterdir())[-1], 0, b"\x7f" * 30)
    assert_repaired(golden, known)


def test_a_tags_code_like_an_address_without_extension_files_is_damage(golden_store):
    golden = golden_store("5.5.0", "basic")
    path = sorted((golden.path / "consumequeue" / "TopicA" / "0").iterdir())[0]
    overwrite(path, 12, b"\xff" * 4)
    assert_repaired(golden, known_messages(golden.path))


def test_an_empty_first_log_file_is_told_and_covered(golden_store):
    golden = golden_store("5.5.0", "basic")
    known = known_messages(golden.path)
    log_files(golden.path)[0].write_bytes(b"")
    assert not doctor.verify(golden.path, config=golden.conf).clean
    assert_repaired(golden, known)


def test_what_is_lost_with_all_of_a_topic_that_was_made_again_is_named(store_path):
    with rmqcore.open_store(store_path) as store:
        for _ in range(3):
            store.put("T", b"before")
        store.delete_topic("T")
        places = [store.put("T", b"again").phy_offset for _ in range(3)]
    overwrite(log_files(store_path)[0], places[0], bytes(1000))
    report = doctor.repair(store_path)
    assert report.clean
    assert [one.queue_offset for one in report.plan.lost] == [0, 1, 2]


def test_a_torn_tail_is_cut_and_nothing_more_where_queues_and_index_agree(store_path):
    with rmqcore.open_store(store_path) as store:
        places = [store.put("T", b"body", keys=f"k{number}").phy_offset for number in range(9)]
    known = known_messages(store_path)
    torn = shutil.copytree(store_path, store_path.with_name("torn"))
    overwrite(log_files(torn)[0], used(log_files(torn)[0]), b"\x00\x00\x01\x00 never written whole")
    report = doctor.repair(torn)
    assert report.clean
    assert [step.kind.value for step in report.plan.steps] == ["cut-tail", "checkpoint"]
    assert_found(torn, known)
    overwrite(log_files(store_path)[0], places[-1] + 4, bytes(4))
    report = doctor.repair(store_path)
    assert report.clean
    assert [step.kind.value for step in report.plan.steps] == [
        "cut-tail",
        "rebuild-queues",
        "rebuild-index",
        "checkpoint",
    ]
    assert_found(store_path, known[:-1])


@pytest.mark.parametrize(
    ("start", "strays"), [(0, (700_001, 700_001 + (1 << 16))), (5000 << 16, (0,))]
)
def test_files_that_are_none_of_the_log_do_not_outvote_it(store_path, start, strays):
    (store_path / "commitlog").mkdir(parents=True)
    record = encode_record(
        Message("T", b"body"), queue_offset=0, phy_offset=start, store_timestamp_ms=1000
    )
    log = store_path / "commitlog" / f"{start:020d}"
    log.write_bytes(record.ljust(1 << 16, b"\0"))
    for stray in strays:
        log.with_name(f"{stray:020d}").write_bytes(b"x")
    assert doctor.repair(store_path, config={"mapped_file_size_commit_log": 1 << 16}).clean
    assert log_files(store_path) == [log]
    with rmqcore.open_store(store_path, mode="r") as opened:
        assert [message.body for message in opened.messages("T", 0)] == [b"body"]


@pytest.mark.parametrize("queues", ["kept", "lost"])
@pytest.mark.parametrize("first", [0, 3, -1])
@pytest.mark.parametrize("body_size", [2, 10, 17])
def test_what_covers_damage_has_the_crc_that_reads_demand(store_path, body_size, first, queues):
    settings = {
        "mapped_file_size_commit_log": 4096,
        "enabled_append_prop_crc": True,
        "force_verify_prop_crc": True,
    }
    with rmqcore.open_store(store_path, **settings) as store:
        receipts = [store.put("Orders", b"x" * body_size) for _ in range(40)]
    lost = [receipt for receipt in receipts if receipt.phy_offset < 4096][first]
    overwrite(log_files(store_path)[0], lost.phy_offset, bytes(lost.store_size))
    if queues == "lost":
        shutil.rmtree(store_path / "consumequeue")
    config = rmqcore.StoreConfig(**settings)
    assert doctor.repair(store_path, config=config).left == []
    with rmqcore.open_store(store_path, **settings) as store:
        found = {message.phy_offset for message in store.messages("Orders", 0)}
    assert found >= {receipt.phy_offset for receipt in receipts} - {lost.phy_offset}
