"""The decoders in Python: small files of a store, units, texts, what slaves and masters say.

Each takes the bytes of one input; what it refuses with another error than `run` expects comes out
as a ValueError.
"""

from pathlib import Path

from temporary import shared_directory

from rmqcore.broker.pop.receipts import Checkpoint, Receipt, read_ack
from rmqcore.doctor.offset_tables import TABLES
from rmqcore.doctor.plan import RepairPlan
from rmqcore.errors import CorruptStoreError, StoreError
from rmqcore.files.config_file import unsealed
from rmqcore.files.deleted_topics import DeletedTopics
from rmqcore.files.lease_journal import LeaseJournal, to_bytes
from rmqcore.files.store_checkpoint import StoreCheckpoint
from rmqcore.files.store_dir import StoreDir
from rmqcore.files.store_mark import StoreMark
from rmqcore.files.store_trace import EVENTS, ROWS_MAX, StoreTrace, read_trace
from rmqcore.files.timer_check import TimerCheck
from rmqcore.ha.errors import HAError
from rmqcore.ha.frames import FrameReader, ReportReader
from rmqcore.java.json import format_java_json, parse_java_json
from rmqcore.java.properties import parse_properties
from rmqcore.native.format._message_ext import message_from
from rmqcore.remoting.errors import RequestRefusedError
from rmqcore.scan.unit_files import UnitFiles
from rmqcore.store.consume.sql92 import compile_condition
from rmqcore.store.parts.key_value_records import parts_of

MEMORY = Path("/dev/shm")
HOME = shared_directory("fuzz", MEMORY if MEMORY.is_dir() else None)
STORE = StoreDir(HOME)
QUEUE_FILE = f"{0:020d}"
for directory in (
    STORE.config,
    STORE.consume_queue / "T" / "0",
    STORE.batch_consume_queue / "B" / "0",
):
    directory.mkdir(parents=True)


def written(path, data):
    path.write_bytes(data)
    return path


def read_java_json(data):
    value = parse_java_json(bytes(data).decode())
    assert parse_java_json(format_java_json(value)) is not None or value is None


def read_broker_conf(data):
    parse_properties(bytes(data).decode("latin-1"))


def read_tables(data):
    refused = []
    for table in TABLES.values():
        try:
            table.check(bytes(data).decode())
        except ValueError as error:
            refused.append(error)
    if len(refused) == len(TABLES):
        raise refused[0]


def read_sealed(data):
    unsealed(bytes(data).decode())


def read_marks(data):
    written(STORE.config / "storeMark.json", data)
    StoreMark(STORE).load()
    written(STORE.config / "deletedTopics.json", data)
    DeletedTopics(STORE).load()


def read_trace_rows(data):
    rows = read_trace(written(STORE.trace, data))
    assert len(rows) <= ROWS_MAX
    assert all(row.event in EVENTS and row.count >= 0 for row in rows)
    trace = StoreTrace(STORE.trace, lambda: 1)
    trace.open()
    assert trace.rows() == rows
    trace.note("open")
    trace.let_go()


def read_checkpoint(data):
    StoreCheckpoint(written(STORE.checkpoint, data)).load()


def read_leases(data):
    for entry in LeaseJournal(written(STORE.consumer_leases, data)).entries():
        to_bytes(entry)


def read_timer(data):
    timer = TimerCheck(STORE.config)
    written(timer.path, data)
    progress = timer.load()
    assert progress is None or min(progress.first_pending, progress.read_offset) >= 0
    timer.set_back(5)


def read_units(data):
    written(STORE.consume_queue / "T" / "0" / QUEUE_FILE, data)
    written(STORE.batch_consume_queue / "B" / "0" / QUEUE_FILE, data)
    files = UnitFiles(STORE, 1 << 20)
    try:
        assert files.end(("T", 0)) <= len(data) // 20
        assert files.queue_end(("T", 0)) is not None
        files.queue_end(("B", 0))
        files.first_unit(("B", 0))
    finally:
        files.close()


def read_key_value(data):
    key, value, _ = parts_of(message_from(bytes(data)))
    assert len(key) + len(value) < len(data)


def read_ha_frames(data):
    reader = FrameReader()
    reader.free[: len(data)] = bytes(data)
    try:
        taken = sum(
            12 + len(frame.body)
            for frame in reader.received(len(data), int.from_bytes(data[:8], "big", signed=True))
        )
    except HAError as error:
        raise ValueError(str(error)) from error
    assert taken <= len(data)


def read_ha_reports(data):
    reader, part = ReportReader(), bytes(data[:4000])
    reader.free[: len(part)] = part
    try:
        offset = reader.received(len(part))
    except HAError as error:
        raise ValueError(str(error)) from error
    assert offset is None or offset >= 0


def read_condition(data):
    matches = compile_condition(bytes(data).decode("latin-1"))
    assert matches({"a": "5", "b": "x"}) in (True, False)


def read_receipt(data):
    try:
        Receipt.parse(bytes(data).decode("latin-1"))
    except RequestRefusedError as error:
        raise ValueError(str(error)) from error


def read_pop_checkpoint(data):
    Checkpoint.from_java(bytes(data), 0, 0)


def read_pop_ack(data):
    read_ack(bytes(data))


def read_plan(data):
    try:
        RepairPlan.from_json(bytes(data)).check_places(STORE)
    except CorruptStoreError:
        raise
    except StoreError as error:
        raise ValueError(str(error)) from error


FILE_DECODERS = (
    read_java_json,
    read_broker_conf,
    read_tables,
    read_sealed,
    read_marks,
    read_trace_rows,
    read_checkpoint,
    read_leases,
    read_timer,
    read_units,
    read_key_value,
    read_ha_frames,
    read_ha_reports,
    read_condition,
    read_receipt,
    read_pop_checkpoint,
    read_pop_ack,
    read_plan,
)
