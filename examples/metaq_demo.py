"""The demonstration: real text is written, the writer killed, its store recovered, served, moved.

`rmqcore metaq demo` runs it; as a script, ``metaq_demo.py FOLDER``, it is the writer that gets
killed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from rmqcore import open_store
from rmqcore.errors import CorruptStoreError
from rmqcore.metaq._message_set import encode_many
from rmqcore.metaq._segment_tail import Location
from rmqcore.metaq.client import MetaClient
from rmqcore.metaq.manager import MessageStoreManager
from rmqcore.metaq.message import IdWorker, encode_data
from rmqcore.metaq.meta_config import MetaConfig
from rmqcore.metaq.server import MetaServer
from rmqcore.metaq.settings import SystemConfig
from rmqcore.transfer.metaq import PartitionReport, migrate, target_topic
from rmqcore.world import monotonic_s

TOPIC = "corpus"
PARTITIONS = 2
_BATCH = 64
_WINDOW = 32
_TEXT_FOLDERS = ("/usr/share/common-licenses", "/usr/share/doc", "/usr/share/dict")
_TEXT_NAMES = {"", ".txt", ".md", ".rst", ".py"}

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What happened.

    Attributes:
        acknowledged: messages that the writer was told are on disk before it was killed.
        recovered: messages found afterwards.
        lost: acknowledged messages that were not found; 0 or the demonstration failed.
        truncated: bytes of the torn tail that recovery cut.
        recovery_s: time to open the killed store.
        served: messages fetched over the text protocol.
        served_mb_s: speed of that, megabytes a second.
        migrated: one report a partition.
        found_by_id: True when a message was found in the new store by its MetaQ id.
    """

    acknowledged: int
    recovered: int
    lost: int
    truncated: int
    recovery_s: float
    served: int
    served_mb_s: float
    migrated: tuple[PartitionReport, ...]
    found_by_id: bool


def run_demo(folder: Path, *, messages: int = 200_000, say: Say) -> DemoResult:
    """Run every step below an empty folder and say what happens.

    Args:
        folder: gets ``metaq/`` and ``rocketmq/``.
        messages: acknowledged messages after which the writer is killed.
        say: gets one line a step.

    Raises:
        CorruptStoreError: something acknowledged is gone.
    """
    source, target = folder / "metaq", folder / "rocketmq"
    acknowledged = _write_and_kill(source, messages)
    _tear(source)
    say(
        f"write    {acknowledged:,} lines of real text, each on disk; killed the writer, and tore "
        "the tails as a power cut does: half a record, then zeros"
    )

    begin = monotonic_s()
    with MessageStoreManager(demo_config(source)) as manager:
        recovery_s = monotonic_s() - begin
        stores = list(manager.all_stores())
        truncated = sum(store.recovery.truncated for store in stores if store.recovery)
        numbers = {_number(m.attribute) for store in stores for m in store.messages()}
        lost = sum(number not in numbers for number in range(acknowledged))
        if lost:
            raise CorruptStoreError(source, -1, f"{lost} acknowledged messages are gone")
        size = sum(store.size_in_bytes for store in stores)
        say(
            f"recover  {size / 1e6:,.1f} MB checked in {recovery_s:.2f} s, {truncated:,} torn "
            f"bytes cut, {len(numbers):,} messages found, none of the acknowledged lost"
        )
        served, served_mb_s = asyncio.run(_serve(manager))
        say(f"serve    {served:,} messages over the text protocol at {served_mb_s:,.0f} MB/s")
        sample = next(stores[0].messages())

    reports = migrate(source, target)
    for report in reports:
        say(
            f"migrate  {report.topic}-{report.partition} -> {report.target_topic}/"
            f"{report.partition}: {report.messages:,} messages, SHA-256 {report.sha256[:16]} on "
            "both sides"
        )
    with open_store(target, mode="r") as store:
        found = store.query_message(target_topic(TOPIC), str(sample.message_id)).messages
        found_by_id = any(bytes(copy.body) == sample.data for copy in found)
    say(f"verify   MetaQ id {sample.message_id} {'found' if found_by_id else 'NOT found'} by key")
    return DemoResult(
        acknowledged,
        len(numbers),
        lost,
        truncated,
        recovery_s,
        served,
        served_mb_s,
        tuple(reports),
        found_by_id,
    )


def demo_config(source: Path) -> MetaConfig:
    """Group commit, small segments, two partitions."""
    system = SystemConfig(
        data_path=str(source),
        num_partitions=PARTITIONS,
        unflush_threshold=0,
        max_segment_size=8 << 20,
    )
    return MetaConfig(system, [TOPIC])


def real_text() -> Iterator[bytes]:
    """Lines of the texts that this machine has: licences, package documentation, sources."""
    folders = [Path(folder) for folder in (*_TEXT_FOLDERS, sysconfig.get_path("stdlib"))]
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in _TEXT_NAMES and path.is_file():
                try:
                    lines = path.read_bytes().splitlines()
                except OSError:
                    continue
                yield from (line for line in lines if line.strip())


def write_for_ever(source: Path) -> None:
    """Append real text, numbered, and print how many messages in order are on disk."""
    ids = IdWorker(0)
    lines = itertools.chain.from_iterable(iter(real_text, None))
    numbered = enumerate(lines)
    pending: list[Future[Location]] = []
    with MessageStoreManager(demo_config(source)) as manager:
        stores = [manager.get_or_create(TOPIC, partition) for partition in range(PARTITIONS)]
        for turn in itertools.count():
            rows = [
                (ids.next_id(), *encode_data(line, f"line={number}"))
                for number, line in itertools.islice(numbered, _BATCH)
            ]
            pending.append(stores[turn % PARTITIONS].append_many_async(rows))
            if len(pending) == _WINDOW:
                for future in pending:
                    future.result()
                pending.clear()
                os.write(sys.stdout.fileno(), b"%d\n" % ((turn + 1) * _BATCH))


def _write_and_kill(source: Path, messages: int) -> int:
    """Let a writer run until so many messages are acknowledged, then kill it without warning."""
    command = [sys.executable, __file__, str(source)]
    found = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": found}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as writer:
        acknowledged = 0
        for line in writer.stdout or ():
            acknowledged = int(line)
            if acknowledged >= messages:
                break
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read() if writer.stdout else b""
    whole = rest.rpartition(b"\n")[0].split()
    return int(whole[-1]) if whole else acknowledged


def _tear(source: Path) -> None:
    """Put half a record and a page of zeros behind the newest segment of each partition."""
    for folder in source.iterdir():
        newest = max(folder.glob("*.meta"))
        record = encode_many([(1, b"torn " * 100, 0)])
        with newest.open("ab") as file:
            file.write(record[: len(record) // 2] + bytes(4096))


async def _serve(manager: MessageStoreManager) -> tuple[int, float]:
    """Fetch everything over loopback; messages and megabytes a second."""
    server = MetaServer(manager, port=0)
    host, port = await server.start()
    count = size = 0
    begin = monotonic_s()
    async with MetaClient(host, port) as client:
        for partition in range(PARTITIONS):
            async for message in client.messages(TOPIC, partition):
                count += 1
                size += message.stored_size
    seconds = monotonic_s() - begin
    await server.stop()
    return count, size / 1e6 / seconds


def _number(attribute: str | None) -> int:
    return int((attribute or "line=-1").removeprefix("line="))


if __name__ == "__main__":
    write_for_ever(Path(sys.argv[1]))
