"""A header that was damaged takes no other message's place, and makes no queue."""

import shutil

import pytest
from doctor.damage import assert_found, flip, known_messages, log_files, overwrite

import rmqcore
from golden.check import digest_tree
from rmqcore import doctor
from rmqcore._codec import encode_batch
from rmqcore.doctor.kept_files import remove
from rmqcore.rebuild.consume_queues import rebuild_consume_queues

pytestmark = pytest.mark.engine

FILE_SIZE = 1 << 14
SIZES = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * 16,
    "max_hash_slot_num": 8,
    "max_index_num": 32,
}


@pytest.fixture
def store(store_path):
    with rmqcore.open_store(store_path, config=SIZES) as opened:
        for number in range(40):
            opened.put("T", b"%d" % number * 100, queue_id=number % 2, keys=f"k{number}")
    return store_path


def check(store, at, bits, *, queues):
    """Flip bits of the eleventh record, without or with the consume queues; and repair."""
    known = known_messages(store)
    one = known[10]
    flip(log_files(store)[one.phy_offset // FILE_SIZE], one.phy_offset % FILE_SIZE + at, bits)
    if not queues:
        shutil.rmtree(store / "consumequeue")
    plan = doctor.plan(store)
    if plan.clean:
        return plan
    assert doctor.repair(store, plan=plan).clean, (at, bits)
    assert_found(store, [other for other in known if other != one])
    return plan


def check_number_put_back(store, known, one, at, bits, kind=doctor.StepKind.RENUMBER):
    """Flip bits of a record's queue offset, and repair; the log is as it was, no message lost."""
    before = digest_tree(store / "commitlog")
    flip_header(store, one, at, bits)
    damaged = digest_tree(store)
    plan = doctor.plan(store)
    kinds = [(step.kind, step.start) for step in plan.steps if step.start >= 0]
    assert kinds == [(kind, one.phy_offset)]
    assert plan.lost == plan.unnamed == []
    assert doctor.repair(store, plan=plan).clean
    assert digest_tree(store / "commitlog") == before
    assert_found(store, known)
    doctor.undo(store)
    assert digest_tree(store) == damaged


@pytest.mark.parametrize(("at", "bits"), [(15, 1), (14, 1)])
def test_a_flip_in_the_header_is_covered_and_the_place_kept(store, at, bits):
    plan = check(store, at, bits, queues=True)
    assert plan.steps[0].kind is doctor.StepKind.COVER
    assert [(one.queue_id, one.queue_offset) for one in plan.lost] == [(0, 10)]


@pytest.mark.parametrize(("at", "bits"), [(20, 1), (23, 1), (25, 128), (27, 1), (27, 2)])
def test_a_number_that_rotted_is_put_back(store, at, bits):
    known = known_messages(store)
    check_number_put_back(store, known, known[10], at, bits)


@pytest.mark.parametrize("bits", [4, 12], ids=["half", "rolled back"])
@pytest.mark.parametrize("place", [0, 10, -1])
def test_a_flag_that_takes_a_message_out_of_its_queue_is_put_back(store, place, bits):
    known = known_messages(store)
    if bits == 12:
        # a committed one
        flip_header(store, known[place], 39, 8)
        known, bits = known_messages(store), 4
    check_number_put_back(store, known, known[place], 39, bits, doctor.StepKind.RESET_FLAG)


@pytest.mark.parametrize(("at", "bits"), [(20, 1), (22, 1), (25, 1), (27, 64)])
def test_a_far_number_of_the_first_record_of_the_log_is_put_back(store, at, bits):
    """A unit that is not there is all zeros, and so is where that record lies."""
    known = known_messages(store)
    check_number_put_back(store, known, known[0], at, bits)


def test_no_number_is_put_back_that_the_queue_or_the_log_beside_it_denies(store):
    """The first one's unit leads elsewhere; of the two others each lacks the one beside it."""
    known = known_messages(store)
    of_queue = [one for one in known if one.queue_id == 0]
    overwrite(store / "consumequeue" / "T" / "0" / f"{0:020d}", 20 * 4, bytes(8))
    for number in (4, 10, 11):
        flip_header(store, of_queue[number], 20, 1)
    plan = doctor.plan(store)
    kinds = [step.kind for step in plan.steps if step.start >= 0]
    assert kinds == [doctor.StepKind.COVER] * 3
    assert doctor.repair(store, plan=plan).clean
    assert_found(store, [one for one in known if one not in (of_queue[n] for n in (4, 10, 11))])


@pytest.mark.parametrize(("at", "bits"), [(22, 1), (25, 1), (26, 1), (27, 1), (27, 64)])
def test_a_wrong_number_of_the_first_record_that_retention_has_left_is_put_back(
    long_store, at, bits
):
    log_files(long_store)[0].unlink()
    with rmqcore.open_store(long_store) as opened:
        opened.put("T", b"another")
    known = known_messages(long_store)
    first = known[0]
    assert first.phy_offset == FILE_SIZE
    check_number_put_back(long_store, known, first, at, bits)


def test_a_record_that_takes_the_place_of_the_one_before_it_is_covered(store):
    """The messages behind go on from the number that it names."""
    known = known_messages(store)
    one = next(one for one in known if one.queue_id == 1)
    flip_header(store, one, 15, 1)
    plan = doctor.plan(store)
    assert [str(lost) for lost in plan.lost] == ["T/1 offset 0"]
    assert doctor.repair(store, plan=plan).clean
    assert_found(store, [other for other in known if other != one])


def test_no_record_is_covered_since_what_follows_it_in_its_queue_was(light):
    """A filler has the physical offset of the first record of the log."""
    known = known_messages(light)
    flip_header(light, known[1], 25, 1)
    assert doctor.repair(light).clean
    assert doctor.plan(light).clean
    assert_found(light, [known[0], *known[2:]])


@pytest.mark.parametrize(("at", "bits"), [(20, 1), (22, 1), (24, 1)])
def test_an_offset_that_no_queue_can_have_is_put_back_without_queues(store, at, bits):
    known = known_messages(store)
    assert check(store, at, bits, queues=False).steps[0].kind is doctor.StepKind.RENUMBER
    assert_found(store, known)


def test_a_flipped_flag_of_a_stored_batch_makes_no_queue_of_batches(store):
    known = known_messages(store)
    one = known[10]
    flip(log_files(store)[one.phy_offset // FILE_SIZE], one.phy_offset % FILE_SIZE + 39, 128)
    assert doctor.plan(store).clean
    assert rebuild_consume_queues(store).identical
    assert not (store / "batchconsumequeue").exists()


@pytest.fixture
def long_store(store):
    with rmqcore.open_store(store) as opened:
        for number in range(80):
            opened.put("T", b"%d" % number * 100)
    return store


def test_log_files_with_each_others_names_are_named_and_not_covered(long_store, tmp_path):
    store = long_store
    first, second = log_files(store)[:2]
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    before = digest_tree(store)
    plan = doctor.plan(store)
    assert plan.steps == []
    assert [one.split()[4:7:2] for one in plan.left] == [
        [f"commitlog/{first.name}", f"{second.name};"],
        [f"commitlog/{second.name}", f"{first.name};"],
    ]
    assert doctor.repair(store).left[:2] == plan.left
    assert digest_tree(store) == before


def test_a_second_copy_of_a_queue_file_gives_up_no_whole_record(store):
    known = known_messages(store)
    (file,) = sorted((store / "consumequeue" / "T" / "1").iterdir())[-1:]
    shutil.copyfile(file, file.with_name(f"{int(file.name) + 320:020d}"))
    one = [message for message in known if message.queue_id == 1][-2]
    flip(log_files(store)[0], one.phy_offset + 4)
    assert doctor.repair(store).clean
    assert_found(store, [other for other in known if other != one])


def test_a_second_copy_of_a_log_file_is_covered(long_store):
    store = long_store
    first, second = log_files(store)[:2]
    known = [one for one in known_messages(store) if one.phy_offset // FILE_SIZE != 1]
    shutil.copyfile(first, second)
    assert doctor.repair(store).clean
    assert_found(store, known)


def test_no_record_is_covered_because_a_wrong_queue_leads_to_it(store):
    with rmqcore.open_store(store) as opened:
        for number in range(9):
            opened.put("T", b"%d" % number, queue_id=1)
    known = known_messages(store)
    even, odd = store / "consumequeue" / "T" / "0", store / "consumequeue" / "T" / "1"
    even.rename(store / "aside")
    odd.rename(even)
    (store / "aside").rename(odd)
    plan = doctor.plan(store)
    assert [step.kind.value for step in plan.steps] == ["rebuild-queues", "checkpoint"]
    assert doctor.repair(store, plan=plan).clean
    assert_found(store, known)


def moved_about(queues, rng):
    """Rename, swap, copy or remove directories or files of queues; what was done, in words."""
    depth = rng.choice(["*", "*/*", "*/*/*"])
    one, other = (rng.choice(sorted(queues.glob(depth))) for _ in range(2))
    names = {"*": "Else", "*/*": "7", "*/*/*": f"{int(rng.random() * 9) * 320:020d}"}
    way = rng.choice(["rename", "swap", "copy", "remove"])
    aside = queues / "aside"
    if way == "rename":
        target = one.with_name(names[depth])
        one.rename(aside)
        remove(target)
        aside.rename(target)
    elif way == "remove":
        remove(one)
    elif one != other:
        one.rename(aside)
        if way == "swap":
            other.rename(one)
            aside.rename(other)
        else:
            remove(other)
            (shutil.copytree if aside.is_dir() else shutil.copyfile)(aside, other)
            aside.rename(one)
    return f"{way} {one.relative_to(queues)} {other.relative_to(queues)}"


def mixed_up(path, rng, rounds):
    """Move queues about, again and again: every whole record is found after a repair."""
    known = known_messages(path)
    for _ in range(rounds):
        copy = shutil.copytree(path, path.with_name("copy"))
        done = [moved_about(copy / "consumequeue", rng) for _ in range(rng.randint(1, 4))]
        plan = doctor.plan(copy)
        kinds = {step.kind.value for step in plan.steps}
        assert kinds <= {"rebuild-queues", "checkpoint"}, done
        assert plan.lost == [], done
        assert doctor.repair(copy, plan=plan).clean, done
        assert_found(copy, known)
        shutil.rmtree(copy)


@pytest.fixture
def many_queues(store_path):
    """Three topics of one to 36 messages a queue, put in turns."""
    with rmqcore.open_store(store_path, config=SIZES) as opened:
        for number in range(36):
            opened.put("T", b"%d" % number, queue_id=number % 2)
            opened.put("U", b"%d" % number)
            if number % 5 == 0:
                opened.put("Orders", b"%d" % number, queue_id=number // 10)
    return store_path


def test_no_name_of_a_queue_costs_a_record(many_queues, rng):
    mixed_up(many_queues, rng, 12)


@pytest.mark.storm
def test_no_name_of_a_queue_costs_a_record_however_often(many_queues, rng):
    mixed_up(many_queues, rng, 300)


def test_a_topic_that_was_moved_away_is_derived_again(many_queues):
    known = known_messages(many_queues)
    queues = many_queues / "consumequeue"
    (queues / "Orders").rename(queues / "Orders.bak")
    report = doctor.repair(many_queues)
    assert report.clean
    assert [step.kind.value for step in report.plan.steps] == ["rebuild-queues", "checkpoint"]
    assert_found(many_queues, known)


def test_a_header_that_nothing_but_the_end_of_a_queue_contradicts_is_kept(store):
    one = known_messages(store)[-1]
    flip(log_files(store)[one.phy_offset // FILE_SIZE], one.phy_offset % FILE_SIZE + 14, 1)
    report = doctor.repair(store)
    assert report.clean
    assert "cover" not in {step.kind.value for step in report.plan.steps}
    with rmqcore.open_store(store, mode="r") as opened:
        assert opened.message_at(one.phy_offset) is not None


@pytest.mark.storm
def test_no_flip_of_a_record_takes_another_message_away(store, tmp_path):
    size = len(known_messages(store)[10].record)
    for at in range(size):
        for bits in (1, 128):
            copy = shutil.copytree(store, tmp_path / "copy")
            check(copy, at, bits, queues=True)
            shutil.rmtree(copy)


def test_numbers_of_stored_batches_that_rotted_are_told_by_the_queue(store_path):
    settings = {"topic_queue_types": (("B", "BatchCQ"),)}
    with rmqcore.open_store(store_path, config=SIZES | settings) as opened:
        for number in range(20):
            body = encode_batch([rmqcore.Message("B", b"%d" % n) for n in range(3)])
            properties = {"INNER_NUM": "3", "UNIQ_KEY": f"u{number}"}
            opened.put("B", body, sys_flag=0x80 | 0x40, properties=properties)
        found = opened.messages("B", 0)
        places = [(one.phy_offset, bytes(one.record)) for one in found]
    phy_offset, record = places[7]
    overwrite(log_files(store_path)[0], phy_offset + record.index(b"INNER_BASE") + 11, b"19")
    phy_offset, record = places[12]
    overwrite(log_files(store_path)[0], phy_offset + record.index(b"INNER_NUM") + 10, b"9")
    report = doctor.repair(store_path)
    assert report.clean
    assert [str(one) for one in report.plan.lost] == ["B/0 offset 21 to 23", "B/0 offset 36 to 38"]
    with rmqcore.open_store(store_path, mode="r") as opened:
        kept = [place for place, _ in places if place not in (places[7][0], places[12][0])]
        assert [one.phy_offset for one in opened.messages("B", 0)] == kept


def test_queue_files_that_were_swapped_name_no_wrong_number(store):
    known = known_messages(store)
    one = next(one for one in known if (one.queue_id, one.queue_offset) == (0, 5))
    overwrite(log_files(store)[0], one.phy_offset + 4, bytes(4))
    first, second = sorted((store / "consumequeue" / "T" / "0").iterdir())
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    report = doctor.repair(store)
    assert report.clean
    assert report.plan.unnamed == [("T", 0, 5, 6)]
    assert_found(store, [other for other in known if other != one])


def test_a_header_of_a_deleted_topic_is_nobodys(store):
    known = [one for one in known_messages(store) if one.queue_id == 0]
    with rmqcore.open_store(store) as opened:
        opened.delete_topic("T")
    flip(log_files(store)[0], known[5].phy_offset + 26, 1)
    assert doctor.verify(store).clean
    assert doctor.plan(store).clean


def test_a_topic_that_no_directory_can_have_is_covered(store_path):
    topic = "%RETRY%" + "long" * 60
    with rmqcore.open_store(store_path, config=SIZES) as opened:
        for number in range(30):
            opened.put(topic, b"%d" % number)
    known = known_messages(store_path)
    for one, byte in ((known[4], b"\0"), (known[9], b"/"), (known[14], b"\xff")):
        at = one.phy_offset + one.record.index(b"long")
        overwrite(log_files(store_path)[0], at, byte * 100)
    report = doctor.repair(store_path)
    assert report.clean
    assert [one.queue_offset for one in report.plan.lost] == [4, 9, 14]
    assert_found(store_path, [one for one in known if one.queue_offset not in (4, 9, 14)])


LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}


@pytest.fixture
def light(store_path):
    with rmqcore.open_store(store_path, config=SIZES | LIGHT) as opened:
        for number in range(40):
            queues = "%LMQ%a,%LMQ%b" if number % 3 else "%LMQ%a"
            opened.put("T", b"%d" % number, properties={"INNER_MULTI_DISPATCH": queues})
    return store_path


@pytest.mark.parametrize(
    ("name", "at", "byte"),
    [
        (b"INNER_MULTI_QUEUE_OFFSET\x01", 0, b"3"),
        (b"INNER_MULTI_QUEUE_OFFSET\x01", 1, b"9"),
        (b"INNER_MULTI_QUEUE_OFFSET\x01", 3, b"3"),
        (b"INNER_MULTI_DISPATCH\x01", 5, b"c"),
        (b"INNER_MULTI_DISPATCH\x01", 1, b"\x7f"),
    ],
)
def test_a_number_of_a_light_queue_that_rotted_is_covered(light, name, at, byte):
    known = known_messages(light)
    one = known[20]
    offset = one.phy_offset + one.record.index(name) + len(name) + at
    overwrite(log_files(light)[offset // FILE_SIZE], offset % FILE_SIZE, byte)
    units = {path: path.read_bytes() for path in light.glob("consumequeue/%LMQ%*/0/*")}
    report = doctor.repair(light)
    assert report.clean
    assert ("T", 20) in [(one.topic, one.queue_offset) for one in report.plan.lost]
    assert_found(light, [other for other in known if other != one])
    assert {path.parent.parent.name for path in light.glob("consumequeue/*/0/*")} == {
        "T",
        "%LMQ%a",
        "%LMQ%b",
    }
    gone = one.phy_offset.to_bytes(8, "big")
    for path, data in units.items():
        kept = [data[n : n + 20] for n in range(0, len(data), 20)]
        now = path.read_bytes()
        for number, unit in enumerate(kept):
            assert unit[:8] == gone or now[number * 20 : number * 20 + 20] == unit


@pytest.mark.parametrize("given", [{}, {"enable_lmq": False}])
def test_light_queues_are_derived_again_when_all_queues_are_lost(light, given):
    """The store's mark knows them, whatever the settings say."""
    expected = {path: path.read_bytes() for path in light.glob("consumequeue/*/0/*")}
    shutil.rmtree(light / "consumequeue")
    assert doctor.repair(light, config=SIZES | given).clean
    assert {path: path.read_bytes() for path in light.glob("consumequeue/*/0/*")} == expected


@pytest.mark.parametrize("bits", [0x40, 0x80])
def test_a_topic_that_rotted_into_no_name_makes_no_queue_when_all_are_lost(store, bits):
    known = known_messages(store)
    one = known[7]
    flip(log_files(store)[0], one.phy_offset + one.record.index(b"\x01T") + 1, bits)
    shutil.rmtree(store / "consumequeue")
    assert doctor.repair(store).clean
    assert {path.name for path in (store / "consumequeue").iterdir()} == {m.topic for m in known}
    assert_found(store, [other for other in known if other != one])


def flip_header(store, message, at, bits):
    """Flip bits of a number in the header of a record."""
    position = message.phy_offset % FILE_SIZE
    name = f"{message.phy_offset - position:020d}"
    flip(store / "commitlog" / name, position + at, bits)


def test_an_opening_leaves_a_place_to_the_record_that_the_queue_leads_to(store):
    known = known_messages(store)
    one = next(message for message in known if (message.queue_id, message.queue_offset) == (1, 9))
    # it names the next one's place in the other queue
    flip_header(store, one, 15, 1)
    flip_header(store, one, 27, 9 ^ 10)
    rmqcore.open_store(store).close()
    assert_found(store, [other for other in known if other != one], at_once=1)
    assert {f.how for f in doctor.verify(store).findings if "rebuild" in f.how} == set()
    assert doctor.repair(store).clean
    assert_found(store, [other for other in known if other != one])


@pytest.mark.parametrize(
    ("place", "at", "bits"),
    [(0, 27, 1), (-1, 27, 19 ^ 18), (-1, 27, 4), (-1, 26, 1), (-1, 24, 1)],
    ids=["first", "last", "jumps", "jumps more", "jumps far"],
)
def test_a_wrong_number_at_an_end_of_a_queue_is_put_back(store, place, at, bits):
    known = known_messages(store)
    check_number_put_back(store, known, known[place], at, bits)


def test_a_number_behind_a_lost_message_is_kept_where_the_queue_passes_over_that(store):
    """RocketMQ gives its place in the queue to the one behind."""
    known = known_messages(store)
    lost, one = known[-2:]
    assert (lost.queue_id, one.queue_id) == (1, 1)
    path = store / "commitlog" / f"{lost.phy_offset - lost.phy_offset % FILE_SIZE:020d}"
    overwrite(path, lost.phy_offset % FILE_SIZE, bytes(len(lost.record)))
    units = store / "consumequeue" / "T" / "1" / f"{20 * 16:020d}"
    data = units.read_bytes()
    at = 20 * (lost.queue_offset - 16)
    overwrite(units, at, data[at + 20 : at + 40] + bytes(20))
    report = doctor.repair(store)
    assert report.clean
    assert "renumber" not in {step.kind.value for step in report.plan.steps}
    assert_found(store, [other for other in known if other != lost])


def test_a_record_at_the_end_of_its_queue_that_names_anothers_place_is_covered(store):
    known = known_messages(store)
    one = known[-1]
    flip_header(store, one, 15, 1)
    plan = doctor.plan(store)
    assert (plan.steps[0].kind, plan.steps[0].start) == (doctor.StepKind.COVER, one.phy_offset)
    before = digest_tree(store)
    assert doctor.repair(store, plan=plan).clean
    assert_found(store, [other for other in known if other != one])
    doctor.undo(store)
    assert digest_tree(store) == before


@pytest.mark.parametrize(
    ("place", "at", "bits"),
    [(0, 15, 1), (-2, 15, 1), (-2, 27, 64)],
    ids=["first", "last of its queue", "last, of before"],
)
def test_a_place_that_steps_back_in_a_log_that_retention_has_cut_is_mended(
    store_path, place, at, bits
):
    """As if the topic had been deleted and made again; but a unit of its queue leads to it."""
    store = store_path
    with rmqcore.open_store(store, config=SIZES) as opened:
        for number in range(180):
            opened.put("T", b"%d" % number * 50, queue_id=number % 2, keys=f"k{number}")
    log_files(store)[0].unlink()
    with rmqcore.open_store(store) as opened:
        opened.put("T", b"another", queue_id=0)
    known = sorted(known_messages(store), key=lambda message: message.phy_offset)
    one, begin = known[place], known[0].phy_offset
    assert (begin, known[0].queue_id) == (FILE_SIZE, 0)
    file = log_files(store)[(one.phy_offset - begin) // FILE_SIZE]
    flip(file, one.phy_offset % FILE_SIZE + at, bits)
    plan = doctor.plan(store)
    kind = doctor.StepKind.COVER if at == 15 else doctor.StepKind.RENUMBER
    assert (plan.steps[0].kind, plan.steps[0].start) == (kind, one.phy_offset)
    assert doctor.repair(store, plan=plan).clean
    assert_found(store, [other for other in known if other != one or at != 15])


def bodies(path, queue_id):
    damage = []
    with rmqcore.open_store(path) as store:
        return [bytes(one.body) for one in store.messages("T", queue_id, on_damage=damage.append)]


@pytest.mark.parametrize("mend", [doctor.repair, rebuild_consume_queues])
@pytest.mark.parametrize("derived", [0, 1, None], ids=["own", "other's", "none"])
def test_no_repair_takes_the_place_of_a_message_that_its_queue_leads_to(store, derived, mend):
    # the last message of queue 0 names the place of the last one of queue 1, which lies behind it
    one = [message for message in known_messages(store) if message.queue_id == 0][-1]
    flip(log_files(store)[one.phy_offset // FILE_SIZE], one.phy_offset % FILE_SIZE + 15, 1)
    if derived is not None:
        shutil.rmtree(store / "consumequeue" / "T" / str(derived))
    before = bodies(store, 1)
    mend(store)
    assert bodies(store, 1) == before
    # queue 1 had the right one, but where all of it was derived again
    assert len(before) == 20
    assert (before[-1] == b"39" * 100) == (derived != 1)


def test_a_message_of_another_queue_gets_no_first_number_that_one_has_where_queues_are_lost(
    store_path,
):
    with rmqcore.open_store(store_path, config=SIZES) as opened:
        for number, queue_id in enumerate([0, 0, 1, 0, 1]):
            opened.put("T", b"%d" % number, queue_id=queue_id)
    known = known_messages(store_path)
    # number 2 of queue 0, between the first and the second one of queue 1
    (one,) = (each for each in known if (each.queue_id, each.queue_offset) == (0, 2))
    flip_header(store_path, one, 15, 1)
    shutil.rmtree(store_path / "consumequeue")
    assert doctor.repair(store_path).clean
    assert_found(store_path, [other for other in known if other != one])


@pytest.mark.parametrize("place", [0, 10, -1])
def test_no_rebuild_is_advised_that_would_take_a_message_out_of_its_queue(store, place):
    """Its number is one that no queue has."""
    known = known_messages(store)
    flip_header(store, known[place], 20, 64)
    found = [one for one in doctor.verify(store).findings if one.part == "consume queue"]
    assert found
    assert not any("rmqcore rebuild" in one.how for one in found), found
    assert doctor.repair(store).clean
    assert_found(store, known)
