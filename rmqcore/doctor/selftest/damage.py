"""Bytes that flip and files that are cut short: what is read then is right, or is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from rmqcore import RmqCoreError, open_store
from rmqcore.doctor.selftest.children import Say, broken, run_child
from rmqcore.doctor.selftest.files import read_files, write_files
from rmqcore.doctor.selftest.report import Progress, Row
from rmqcore.doctor.selftest.workload import open_for, put
from rmqcore.files.store_dir import StoreDir
from rmqcore.message import MessageExt
from rmqcore.world import monotonic_s

PROMISE = "every answer is right, or an error of the package names the place"
_MESSAGES = 26
#: With these sizes the whole store is some 15 KB.
_SMALL = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 100,
    "max_hash_slot_num": 16,
    "max_index_num": 64,
}
#: One child does this many cases, so that a crash is not taken for a result of the next case.
_CASES_A_CHILD = 50
#: Fields of a message in which damage is always noticed. No checksum covers the others of a record
#: that has none of its own (``enabled_append_prop_crc``); the queue offset is compared with the
#: queue, which for a queue's last record bounds it only.
_NAMING = ("topic", "queue_id", "phy_offset", "store_size", "body")
_CRC_PROPERTY = "__CRC32#"
Mode = Literal["a", "r"]
#: file, position, and a number from 0 to 1 that says which bit
_Place = tuple[Path, int, float]
#: what a file's bytes become, damaged at a position
_Change = Callable[[bytes, int, float], bytes]
#: what a store answers, by question
_Answers = dict[tuple[str, ...], Any]
_ONLY_UNPROTECTED = "only what is not protected"


@dataclass(frozen=True)
class _Questions:
    """Tags and keys, and whether every record has a checksum of its own, which is demanded then."""

    tags: list[str]
    keys: list[tuple[str, str]]
    crc: bool


def damage(
    most: int,
    seed: int,
    scratch: Path,
    progress: Progress,
    *,
    store: Path | None = None,
    part: int = 0,
    parts: int = 1,
) -> list[Row]:
    """Flip each byte of a small store, and cut each of its files at each length; one row each.

    All but its trace, which nothing believes.

    Where a record has no checksum of its own, a flipped byte may change fields that RocketMQ's
    format protects by nothing; such a case is counted apart, and nothing but these may differ.

    Args:
        most: cases of one row; where there are more, the seed says which are done.
        seed: gives the same places and bits again.
        scratch: a directory for the stores.
        progress: called as it goes on.
        store: what is copied and damaged, a store of a few KB; None makes one.
        part: which part of the cases is done, from 0.
        parts: into how many parts they are divided.
    """
    intact = store or scratch / "intact"
    if store is None:
        run_child(partial(_build, intact))
    passed_over = StoreDir(intact).trace.relative_to(intact)
    files = {
        name: data for name, data in read_files(intact).items() if data and name != passed_over
    }
    messages = len(_answers(intact, "r", _asked(intact))["messages",])
    rows = []
    for name, change in (("flipped bytes", _flipped), ("files cut short", _cut_short)):
        row = Row(name, PROMISE)
        begun = monotonic_s()
        places = _drawn(f"{seed}/{name}", files)[:most][part::parts]
        while row.cases < len(places):
            some = places[row.cases : row.cases + _CASES_A_CHILD]
            said = run_child(partial(_damage_some, intact, scratch / "damaged", change, some))
            done = [line for line in said if line.startswith("done ")]
            for line in done:
                what = line.removeprefix("done ")
                if what == _ONLY_UNPROTECTED:
                    row.unprotected += 1
                elif what:
                    row.fail(what)
            row.cases += len(done)
            if what := broken(said):
                file, at, _ = some[min(len(done), len(some) - 1)]
                row.cases += 1
                row.fail(f"{file} byte {at}: {what}")
            row.acknowledged = row.cases * messages
            progress(row.name, row.cases, len(places))
        row.elapsed_s = monotonic_s() - begun
        rows.append(row)
    return rows


def _drawn(seed: str, files: Mapping[Path, bytes]) -> list[_Place]:
    """Every place in files, in an order of chance, which what one file has changes for no other."""
    drawn = []
    for file, data in files.items():
        for at in range(len(data)):
            digest = blake2b(f"{seed}/{file}/{at}".encode(), digest_size=16).digest()
            order, chance = struct.unpack("<2Q", digest)
            drawn.append((order, (file, at, chance / 2**64)))
    return [place for _, place in sorted(drawn)]


def _flipped(data: bytes, at: int, chance: float) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << int(chance * 8)
    return bytes(changed)


def _cut_short(data: bytes, at: int, chance: float) -> bytes:
    del chance
    return data[:at]


def _build(path: Path, say: Say) -> None:
    del say
    with open_for(path, "sync", **_SMALL) as store:
        for number in range(_MESSAGES):
            put(store, number)


def _damage_some(intact: Path, path: Path, change: _Change, places: list[_Place], say: Say) -> None:
    files = read_files(intact)
    asked = _asked(intact)
    good = _answers(intact, "r", asked)
    for file, at, chance in places:
        write_files(path, files | {file: change(files[file], at, chance)})
        hit = _unprotected_record(good, file, at) if change is _flipped else None
        wrong = _wrong(path, good, asked, hit)
        where = f"{file} byte {at}: " if wrong and wrong != _ONLY_UNPROTECTED else ""
        say(f"done {where}{wrong}")


def _unprotected_record(good: _Answers, file: Path, at: int) -> int | None:
    """The position of the record that a byte is part of, when it has no checksum of its own."""
    if file.parts[0] != "commitlog":
        return None
    position = int(file.name) + at
    messages = good["messages",]
    for begin, message in messages.items():
        if begin <= position < begin + message["store_size"]:
            return None if _CRC_PROPERTY in message["properties"] else begin
    return None


def _wrong(path: Path, good: _Answers, asked: _Questions, hit: int | None) -> str:
    """What is wrong with a damaged store; empty when nothing is, or when it is refused."""
    try:
        found = _answers(path, "a", asked)
    except RmqCoreError as error:
        return "" if str(path) in str(error) else f"the error names no place: {error}"
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    different = [what for what in good.keys() | found.keys() if good.get(what) != found.get(what)]
    wrong = [what for what in different if not _only_unprotected(what, good, found, hit)]
    if wrong:
        return f"another answer to {sorted(wrong)[0]}"
    return _ONLY_UNPROTECTED if different else ""


def _only_unprotected(
    what: tuple[str, ...], good: _Answers, found: _Answers, hit: int | None
) -> bool:
    """Whether an answer differs by unprotected fields of one record alone."""
    if hit is None or not (what in good and what in found):
        return False
    match what:
        case ("messages",):
            was, is_now = ({**answers[what]} for answers in (good, found))
            before, after = was.pop(hit), is_now.pop(hit, {})
            return was == is_now and all(before[name] == after.get(name) for name in _NAMING)
        case ("key", *_) | ("tags", *_):
            return [at for at in good[what] if at != hit] == [at for at in found[what] if at != hit]
        case _:
            return False


def _asked(path: Path) -> _Questions:
    """What is asked of every copy of a store, so that all its records come into it."""
    with open_store(path, mode="r") as store:
        messages = list(store.messages())
    return _Questions(
        tags=sorted({message.tags for message in messages if message.tags}),
        keys=sorted(
            (message.topic, key)
            for message in messages
            for key in {*message.keys, message.unique_key or "no such key"}
        ),
        crc=all(_CRC_PROPERTY in message.properties for message in messages),
    )


def _answers(path: Path, mode: Mode, asked: _Questions) -> _Answers:
    """All that a store answers: log, queues by tag, keys."""
    answers: _Answers = {}
    with open_store(path, mode=mode, force_verify_prop_crc=asked.crc) as store:
        answers["messages",] = {
            message.phy_offset: message.to_dict() for message in store.messages()
        }
        for topic, queue_id in store.queues():
            low = store.min_queue_offset(topic, queue_id)
            queue = (topic, str(queue_id))
            answers["ends", *queue] = (low, store.max_queue_offset(topic, queue_id))
            for tags in ("*", *asked.tags):
                result = store.get_message(topic, queue_id, low, max_messages=1000, tags=tags)
                answers["queue" if tags == "*" else "tags", *queue, tags] = _offsets(
                    result.messages
                )
        for topic, key in asked.keys:
            hits = store.query_message(topic, key, max_messages=1000)
            answers["key", topic, key] = _offsets(hits.messages)
    return answers


def _offsets(messages: Sequence[MessageExt]) -> list[int]:
    return [message.phy_offset for message in messages]
