"""Messages with a time: they come at it and not before, once, whatever restarts lie between."""

import asyncio
import base64
import json
import struct
import threading

import pytest
from broker.conftest import records, served
from patience import TIMEOUT_S, until_async

from rmqcore.broker.timer.timer import TimerMessages
from rmqcore.errors import CorruptConfigFileError
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.timer_check import TIMER_TOPIC, TimerCheck, TimerProgress, progress_told
from rmqcore.ha.resync import Divergence, cut
from rmqcore.remoting import RequestCode, ResponseCode
from rmqcore.world import wall_clock_ms

pytestmark = pytest.mark.engine


async def pulled(peer, topic="T", offset=0):
    return records((await peer.pull(topic, offset=offset)).body)


async def come(peer, topic, count):
    """Wait until a topic has so many messages; returns all of them."""

    async def enough():
        found = await pulled(peer, topic)
        return found if len(found) >= count else None

    return await until_async(enough, f"{count} messages in {topic}")


async def taken_in(broker, count):
    """Wait until the timer has read what was sent, and so many of them wait."""

    def has():
        told = broker.managers.timer.runtime_info()
        return (told["timerOffsetBehind"], told["timerCongestNum"]) == ("0", str(count))

    await until_async(has, f"{count} timer messages are known")


def asked_for(ask, now_ms):
    """What a message says that wants to wait 730 ms, a second for seconds."""
    return {"TIMER_DELIVER_MS": now_ms + 730, "TIMER_DELAY_MS": 730, "TIMER_DELAY_SEC": 1}[ask]


@pytest.mark.parametrize("ask", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
def test_a_message_comes_at_its_time_with_all_that_it_had(with_broker, clock, ask):
    async def scenario(broker, peer):
        await peer.send("T", b"plain")
        timer, asked_ms = broker.managers.timer, clock.now_ms
        wanted = asked_for(ask, asked_ms)
        properties = {ask: str(wanted), "TAGS": "a", "KEYS": "k", "UNIQ_KEY": "U" * 32}
        sent = await peer.send("T", b"timed", queue_id=0, properties=properties)
        await taken_in(broker, 1)
        (stored,) = await pulled(peer, TIMER_TOPIC)
        due_ms = asked_ms + (1000 if ask == "TIMER_DELAY_SEC" else 730)
        slot = (due_ms - 1) // 1000 * 1000
        if ask != "TIMER_DELIVER_MS":
            # a delay counts from when the record was stored, within its second
            since_ms = stored.store_timestamp_ms - asked_ms
            due_ms = min(due_ms + since_ms, slot + 1000)
        clock.go_on(due_ms - 400 - clock.now_ms)
        assert timer._idle_s() == 0.4
        clock.go_on(399)
        assert timer._round()
        assert [m.body for m in await pulled(peer)] == [b"plain"]
        clock.go_on(1, broker)
        message = (await come(peer, "T", 2))[-1]
        assert (message.body, message.tags, message.keys) == (b"timed", "a", ("k",))
        kept = message.properties
        assert int(kept["TIMER_OUT_MS"]) == slot
        assert (kept["REAL_TOPIC"], kept["REAL_QID"]) == ("T", "0")
        assert int(kept["TIMER_DEQUEUE_MS"]) == due_ms
        assert int(kept["TIMER_ENQUEUE_MS"]) % 1000 == 0
        assert kept[ask] == str(wanted)
        assert sent.ext_fields["msgId"] == stored.message_id
        place = sent.ext_fields["queueId"], sent.ext_fields["queueOffset"]
        assert place == ("0", "0")
        handle = base64.urlsafe_b64decode(sent.ext_fields["recallHandle"]).decode()
        assert handle == f"v1 T broker-a {slot + 1} {'U' * 32}"

    with_broker(scenario)


@pytest.mark.measure
@pytest.mark.parametrize("ask", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
def test_how_late_a_message_comes(with_broker, figure, ask):
    async def scenario(_, peer):
        late_ms = []
        for number in range(3):
            asked_ms = wall_clock_ms()
            properties = {ask: str(asked_for(ask, asked_ms))}
            await peer.send("T", b"timed", properties=properties)
            message = (await come(peer, "T", number + 1))[-1]
            due_ms = asked_ms + (1000 if ask == "TIMER_DELAY_SEC" else 730)
            assert due_ms <= message.store_timestamp_ms
            late_ms.append(message.store_timestamp_ms - due_ms)
        figure("a timed message is late by", min(late_ms), "ms", at_most=399)

    with_broker(scenario)


def test_a_time_on_the_second_belongs_to_the_second_before(with_broker):
    async def scenario(_, peer):
        due_ms = (wall_clock_ms() // 1000 + 100) * 1000
        for wanted in (due_ms, due_ms + 1):
            await peer.send("T", b"x", properties={"TIMER_DELIVER_MS": str(wanted)})
        slots = [m.properties["TIMER_OUT_MS"] for m in await pulled(peer, TIMER_TOPIC)]
        assert slots == [str(due_ms - 1000), str(due_ms)]

    with_broker(scenario)


def test_they_come_in_the_order_of_their_times(with_broker, clock):
    async def scenario(broker, peer):
        now_ms = clock.now_ms
        for delay_ms in (900, 300, 600):
            deliver = {"TIMER_DELIVER_MS": str(now_ms + delay_ms)}
            await peer.send("T", b"%d" % delay_ms, properties=deliver)
        await taken_in(broker, 3)
        clock.go_on(300, broker)
        assert [m.body for m in await come(peer, "T", 1)] == [b"300"]
        clock.go_on(600, broker)
        found = await come(peer, "T", 3)
        assert [m.body for m in found] == [b"300", b"600", b"900"]
        for message in found:
            assert int(message.properties["TIMER_DEQUEUE_MS"]) >= now_ms + int(message.body)

    with_broker(scenario)


@pytest.mark.parametrize(
    ("properties", "settings", "code"),
    [
        ({"TIMER_DELIVER_MS": "soon"}, {}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_SEC": "259201"}, {}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_SEC": "11"}, {"timerMaxDelaySec": 10}, ResponseCode.MESSAGE_ILLEGAL),
        (
            {"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "U"},
            {},
            ResponseCode.MESSAGE_ILLEGAL,
        ),
        ({"TIMER_DELAY_SEC": "1"}, {"timerWheelEnable": "false"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_time_that_cannot_be_is_refused(with_broker, properties, settings, code):
    async def scenario(broker, peer):
        answer = await peer.send("T", b"x", properties=properties)
        assert answer.code == code
        assert "timer message" in answer.remark
        assert broker.store.max_phy_offset == 0

    with_broker(scenario, **settings)


def test_a_time_that_is_over_is_no_reason_to_wait(with_broker):
    async def scenario(_, peer):
        sent = await peer.send("T", b"x", properties={"TIMER_DELIVER_MS": "1000"})
        assert "recallHandle" not in sent.ext_fields
        assert [m.body for m in await pulled(peer)] == [b"x"]

    with_broker(scenario)


def test_a_delay_level_counts_more_than_a_time(with_broker, clock):
    async def scenario(broker, peer):
        properties = {"DELAY": "1", "TIMER_DELAY_SEC": "259200"}
        await peer.send("T", b"x", properties=properties)
        clock.go_on(3_600_000, broker)
        (message,) = await come(peer, "T", 1)
        assert message.body == b"x"

    with_broker(scenario)


def test_a_marker_takes_the_message_of_its_topic_back(with_broker, clock):
    async def scenario(broker, peer):
        due_ms = (clock.now_ms // 1000 + 3) * 1000
        target = {"TIMER_DELIVER_MS": str(due_ms - 300), "UNIQ_KEY": "GONE"}
        await peer.send("T", b"gone", properties=target)
        other = {"TIMER_DELIVER_MS": str(due_ms - 200), "UNIQ_KEY": "KEPT"}
        await peer.send("T", b"kept", properties=other)
        marker = {
            "TIMER_DELIVER_MS": str(due_ms - 999),
            "UNIQ_KEY": "GONE",
            "TIMER_DEL_UNIQKEY": "GONE",
        }
        await peer.send("T", b"0", properties=marker)
        for name in ("KEPT", "T+KEPT"):
            await peer.send("U", b"0", properties={**marker, "TIMER_DEL_UNIQKEY": name})
        await taken_in(broker, 5)
        clock.go_on(3000, broker)
        assert [m.body for m in await come(peer, "T", 1)] == [b"kept"]

    with_broker(scenario)


def test_what_was_delivered_does_not_come_again_after_a_restart_and_what_waits_does(
    with_broker, clock
):
    async def first(broker, peer):
        now_ms = clock.now_ms
        for body, delay_ms in ((b"late", 2500), (b"soon", 100), (b"overdue", 1200)):
            deliver = {"TIMER_DELIVER_MS": str(now_ms + delay_ms)}
            await peer.send("T", body, properties=deliver)
        await taken_in(broker, 3)
        clock.go_on(100, broker)
        await come(peer, "T", 1)

    async def behind(broker, peer):
        """A message that is due when all that was delivered would have come again."""
        deliver = {"TIMER_DELIVER_MS": str(clock.now_ms + 1)}
        await peer.send("T", b"behind", properties=deliver)
        await taken_in(broker, 1)
        clock.go_on(1, broker)

    async def again(broker, peer):
        await come(peer, "T", 2)
        clock.go_on(1300, broker)
        await come(peer, "T", 3)
        await behind(broker, peer)
        found = await come(peer, "T", 4)
        assert [m.body for m in found] == [b"soon", b"overdue", b"late", b"behind"]

    async def once_more(broker, peer):
        await behind(broker, peer)
        assert [m.body for m in (await come(peer, "T", 5))[4:]] == [b"behind"]

    with_broker(first)
    clock.go_on(1100)
    with_broker(again)
    with_broker(once_more)


def test_what_is_put_after_the_logs_end_was_cut_off_is_delivered(with_broker, tmp_path, clock):
    async def deliver(broker, peer, bodies):
        for body in bodies:
            properties = {"TIMER_DELIVER_MS": str(clock.now_ms + 1)}
            await peer.send("T", body, properties=properties)
        await taken_in(broker, len(bodies))
        clock.go_on(1, broker)
        return [m.body for m in await come(peer, "T", len(bodies))]

    async def first(broker, peer):
        assert await deliver(broker, peer, [b"1", b"2", b"3"]) == [b"1", b"2", b"3"]
        parked = broker.store.get_message(TIMER_TOPIC, 0, 0, max_messages=1).messages
        ends.append(parked[0].phy_offset)

    async def again(broker, peer):
        assert broker.store.max_queue_offset(TIMER_TOPIC, 0) == 0
        assert await deliver(broker, peer, [b"4", b"5"]) == [b"4", b"5"]

    ends = []
    with_broker(first)
    cut(StoreDir(tmp_path / "store"), Divergence(0, ends[0], 1 << 20, False))
    with_broker(again, on_corruption="truncate")


def test_what_came_behind_a_cut_is_delivered_also_when_the_broker_is_killed_at_once(
    with_broker, tmp_path, monkeypatch
):
    async def never(_):
        await asyncio.Event().wait()

    async def taken(_broker, peer):
        for body in (b"1", b"2"):
            assert (await peer.send("T", body, properties={"TIMER_DELAY_MS": "1"})).code == 0

    async def again(broker, peer):
        assert broker.store.max_queue_offset(TIMER_TOPIC, 0) == 2
        assert [m.body for m in await come(peer, "T", 2)] == [b"1", b"2"]

    check = TimerCheck(tmp_path / "store" / "config")
    check.path.parent.mkdir(parents=True)
    # of two messages that the log has lost
    check.store(TimerProgress(2, 2, wall_clock_ms(), 0), wall_clock_ms())
    with monkeypatch.context() as killed:
        killed.setattr(TimerMessages, "run", never)
        killed.setattr(TimerMessages, "finish", lambda _: None)
        with_broker(taken)
    with_broker(again)


def test_what_came_before_anything_was_kept_does_not_come_again_after_a_restart(
    with_broker, clock, monkeypatch
):
    async def never(_):
        pass

    async def deliver(broker, peer, body, count):
        properties = {"TIMER_DELIVER_MS": str(clock.now_ms + 1)}
        await peer.send("T", body, properties=properties)
        await taken_in(broker, 1)
        clock.go_on(1, broker)
        return [m.body for m in await come(peer, "T", count)]

    async def first(broker, peer):
        assert await deliver(broker, peer, b"once", 1) == [b"once"]

    async def again(broker, peer):
        assert await deliver(broker, peer, b"behind", 2) == [b"once", b"behind"]

    monkeypatch.setattr(TimerMessages, "_persist", never)
    with_broker(first)
    with_broker(again)


def test_a_broker_that_ends_while_progress_is_written_writes_it_once(with_broker, monkeypatch):
    written, begun, goes_on = [], threading.Event(), threading.Event()
    store, finish = TimerCheck.store, TimerMessages.finish

    def slowly(check, progress, now_ms):
        written.append(progress)
        begun.set()
        assert goes_on.wait(TIMEOUT_S)
        store(check, progress, now_ms)

    def ending(timer):
        goes_on.set()
        finish(timer)

    async def scenario(_, __):
        await until_async(begun.is_set, "progress is being written")

    monkeypatch.setattr(TimerCheck, "store", slowly)
    monkeypatch.setattr(TimerMessages, "finish", ending)
    with_broker(scenario)
    assert len(written) == 1


def test_what_java_wrote_last_is_believed_and_its_wheel_goes(with_broker, tmp_path, clock):
    config = tmp_path / "store" / "config"

    async def first(broker, peer):
        now_ms = clock.now_ms
        for body, delay_ms in ((b"a", 50), (b"b", 100), (b"c", 4000)):
            deliver = {"TIMER_DELIVER_MS": str(now_ms + delay_ms)}
            await peer.send("T", body, properties=deliver)
        await taken_in(broker, 3)
        clock.go_on(100, broker)
        await come(peer, "T", 2)

    with_broker(first)
    raw = bytearray((config / "timercheck").read_bytes())
    # the wheel has all three records and has delivered every second up to now
    struct.pack_into(">4q", raw, 0, clock.now_ms // 1000 * 1000 + 1000, 0, 3, 3)
    (config / "timercheck").write_bytes(raw)
    (tmp_path / "store" / "timerlog").mkdir()
    for name in ("timerwheel", "timerlog/00000000000000000000"):
        (tmp_path / "store" / name).write_bytes(b"java's")

    async def again(broker, peer):
        clock.go_on(4000, broker)
        found = await come(peer, "T", 3)
        assert [m.body for m in found] == [b"a", b"b", b"c"]

    with_broker(again)
    assert not (tmp_path / "store" / "timerwheel").exists()
    assert list((tmp_path / "store" / "timerlog").iterdir()) == []


def test_java_is_told_the_first_message_that_waits(with_broker, tmp_path, clock):
    async def scenario(broker, peer):
        for delay_s in (0, 100, 0):
            deliver = str(clock.now_ms + delay_s * 1000 + 50)
            await peer.send("T", b"x", properties={"TIMER_DELIVER_MS": deliver})
        await taken_in(broker, 3)
        clock.go_on(50, broker)
        await come(peer, "T", 2)

    with_broker(scenario)
    check = TimerCheck(tmp_path / "store" / "config")
    assert struct.unpack_from(">4q", check.path.read_bytes()) == (0, 0, 1, 1)
    progress = check.load()
    assert (progress.first_pending, progress.read_offset, progress.due_offset) == (1, 3, 1)


@pytest.mark.parametrize("damage", [b"", b"\xff" * 4096, b"\x00" * 40])
def test_a_progress_file_that_cannot_be_one_says_nothing(tmp_path, damage):
    check = TimerCheck(tmp_path)
    assert check.load() is None
    check.store(TimerProgress(5, 9, 1000, 7), 0)
    assert check.load() == TimerProgress(5, 9, 1000, 7)
    check.path.write_bytes(damage)
    assert check.load() is None


@pytest.mark.parametrize("at", range(108))
def test_a_rotten_byte_of_the_progress_gives_no_delivered_message_again(tmp_path, at):
    """Those below the first that waits; of what was delivered behind it, some may come again."""
    check = TimerCheck(tmp_path)
    stored = TimerProgress(5, 9, 1_700_000_000_000, 7)
    check.store(stored, 1_700_000_000_000)
    raw = check.path.read_bytes()
    for bit in range(8):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << bit
        check.path.write_bytes(damaged)
        assert check.load() in (stored, TimerProgress(5, 5, 1, 0))


def test_runtime_information_counts_what_waits(with_broker):
    async def scenario(broker, peer):
        await peer.send("T", b"x", properties={"TIMER_DELAY_SEC": "100"})

        async def counted():
            answer = await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
            return answer if b'"timerCongestNum":"1"' in answer.body else None

        answer = await until_async(counted, "one timer message waits")
        assert b'"timerOffsetBehind":"0"' in answer.body
        assert b'"timerReadBehind":"0"' in answer.body

    with_broker(scenario)


# ---- what slaves are told

#: lastReadTimeMs, lastTimerLogFlushPos, lastTimerQueueOffset, masterTimerQueueOffset, DataVersion
CHECK_POINT = struct.Struct(">7q")


@pytest.mark.parametrize(
    ("progress", "read_time_ms"),
    [
        # the second of the first that waits; what was delivered in it comes again
        (TimerProgress(5, 9, 61_730, 7), 61_000),
        (TimerProgress(5, 9, 62_000, 7), 61_000),
        (TimerProgress(5, 9, 61_001, 0), 61_000),
        # nothing waits: the second after the last that can have been delivered
        (TimerProgress(9, 9, 61_730, 0), 62_000),
    ],
)
def test_a_slave_is_told_what_it_needs_not_deliver(tmp_path, progress, read_time_ms):
    check = TimerCheck(tmp_path)
    assert check.answer_body(wall_clock_ms()) == bytes(CHECK_POINT.size)
    before_ms = wall_clock_ms()
    check.store(progress, wall_clock_ms())
    told = check.answer_body(wall_clock_ms())
    read_ms, log_position, offset, master_offset, *version = CHECK_POINT.unpack_from(told)
    first = progress.first_pending
    assert told[CHECK_POINT.size :] == first.to_bytes(8, "big")
    assert progress_told(told) == (TimerProgress(first, 9, read_ms + 1, 0), True)
    assert (read_ms, log_position, offset, master_offset) == (read_time_ms, 0, 9, 9)
    assert version[0] == 0
    assert before_ms <= version[1] <= wall_clock_ms()
    # what it tells its own slaves is the same
    check.store(progress_told(told)[0], wall_clock_ms())
    if first < 9:
        assert check.answer_body(wall_clock_ms())[:32] == told[:32]


@pytest.mark.parametrize("body", [b"", bytes(55), b"\xff" * 56, b"\x7f" + b"\xff" * 7 + bytes(48)])
def test_what_no_master_tells_is_refused(body):
    with pytest.raises(ValueError, match="no progress"):
        progress_told(body)


def test_a_first_message_behind_all_that_were_read_is_refused():
    with pytest.raises(ValueError, match="8 of 7"):
        progress_told(CHECK_POINT.pack(61_000, 5, 7, 9, 0, 1, 1) + (8).to_bytes(8, "big"))


def test_a_slave_that_asks_is_told_what_the_file_says(with_broker, tmp_path, clock):
    async def scenario(broker, peer):
        due_ms = clock.now_ms + 100_000
        for deliver_ms in (clock.now_ms + 50, due_ms):
            await peer.send("T", b"x", properties={"TIMER_DELIVER_MS": str(deliver_ms)})
        await taken_in(broker, 2)
        clock.go_on(50, broker)
        await come(peer, "T", 1)
        check = TimerCheck(tmp_path / "store" / "config")

        def written():
            told = check.load()
            return told if told is not None and told.first_pending == 1 else None

        # it is written once a second, for the first time maybe before the first is due
        told = await until_async(written, "the file says that the second waits")
        assert (told.first_pending, told.due_ms) == (1, due_ms)
        answer = await peer.ask(RequestCode.GET_TIMER_CHECK_POINT)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
        assert len(answer.body) == CHECK_POINT.size + 8
        read_ms, *others = CHECK_POINT.unpack_from(answer.body)[:4]
        assert others == [0, 2, 2]
        # not the second of what waits, which is in the future
        assert read_ms == clock.now_ms // 1000 * 1000

    with_broker(scenario)


def test_what_waits_is_counted_by_topic(with_broker, clock):
    async def counted(peer):
        answer = await peer.ask(RequestCode.GET_TIMER_METRICS)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
        told = json.loads(answer.body)
        assert set(told) == {"dataVersion", "timingCount"}
        assert set(told["dataVersion"]) == {"counter", "stateVersion", "timestamp"}
        return told

    async def until_counted(peer, counts):
        async def are():
            told = await counted(peer)
            topics = told["timingCount"]
            return told if {t: entry["count"] for t, entry in topics.items()} == counts else None

        return await until_async(are, f"as many wait: {counts}")

    async def first(broker, peer):
        began_ms = clock.now_ms
        for topic, delay_ms in (("T", 700), ("T", 100_000), ("T", 100_000), ("U", 100_000)):
            deliver = {"TIMER_DELAY_MS": str(delay_ms)}
            await peer.send(topic, b"x", properties=deliver)
        before = await until_counted(peer, {"T": 3, "U": 1})
        assert before["timingCount"]["T"]["timeStamp"] == began_ms
        # a delay of 700 ms ends within two seconds, whenever the record was stored
        clock.go_on(2000, broker)
        after = await until_counted(peer, {"T": 2, "U": 1})
        assert after["dataVersion"]["counter"] == before["dataVersion"]["counter"] + 1
        assert after["timingCount"]["U"] == before["timingCount"]["U"]

    async def again(_, peer):
        await until_counted(peer, {"T": 2, "U": 1})
        # a marker takes off what it recalls
        marker = {"TIMER_DELAY_MS": "100000", "TIMER_DEL_UNIQKEY": "K"}
        await peer.send("U", b"0", properties=marker)
        await until_counted(peer, {"T": 2})

    with_broker(first)
    with_broker(again)


def test_without_a_timer_nothing_is_told(with_broker):
    async def scenario(_, peer):
        for code, remark in (
            (RequestCode.GET_TIMER_CHECK_POINT, "The checkpoint is null"),
            (RequestCode.GET_TIMER_METRICS, "The timer message store is null"),
        ):
            answer = await peer.ask(code)
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)

    with_broker(scenario, timerWheelEnable="false")


def test_progress_is_kept_while_there_is_no_end_of_what_is_due(with_broker, tmp_path, monkeypatch):
    """A kill would bring all of a backlog again, however long it was delivered from."""
    monkeypatch.setattr(TimerMessages, "_round", lambda _: False)

    async def scenario(*_):
        check = TimerCheck(tmp_path / "store" / "config")
        await until_async(check.load, "the file of progress is there")

    with_broker(scenario)


@pytest.mark.parametrize("level", ["1", "+1", " 1 ", "\u0661"])
def test_beside_a_delay_level_no_time_counts_however_it_is_written(with_broker, level):
    async def scenario(broker, peer):
        asked = {"DELAY": level, "TIMER_DELAY_MS": "1000"}
        assert (await peer.send("T", b"x", properties=asked)).code == ResponseCode.SUCCESS
        assert broker.store.max_queue_offset("rmq_sys_wheel_timer", 0) == 0
        (message,) = broker.store.messages("SCHEDULE_TOPIC_XXXX", 0)
        assert message.properties["REAL_TOPIC"] == "T"

    with_broker(scenario)


def test_a_broker_names_a_directory_in_the_place_of_its_progress(tmp_path):
    """Else it would start, and timer messages would wait without end."""

    async def scenario():
        async with served(tmp_path / "store"):
            pass
        check = tmp_path / "store" / "config" / "timercheck"
        check.unlink(missing_ok=True)
        check.mkdir()
        with pytest.raises(CorruptConfigFileError, match="timercheck"):
            async with served(tmp_path / "store"):
                pass
        check.rmdir()
        async with served(tmp_path / "store"):
            pass

    asyncio.run(scenario())
