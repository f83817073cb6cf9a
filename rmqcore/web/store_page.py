"""The store itself: its log files, dispatch, index, what retention deletes next, replication."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rmqcore.doctor.explain import explain
from rmqcore.doctor.findings import VerifyReport
from rmqcore.doctor.plan import RepairPlan, plan
from rmqcore.doctor.verify import verify
from rmqcore.errors import RmqCoreError
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.web.paging import Paged, paged
from rmqcore.web.source import BrokerSource, Source, Store, index_files

_FILES_SHOWN: Final = 30
_EVENTS_SHOWN: Final = 40
#: how long a verification from a page may walk over the log
VERIFY_S: Final = 20.0
#: of the runtime info, what the page shows, in words
_STATS: Final = {
    "putTps": "messages in a second: 10 s, 60 s, 600 s",
    "getTransferredTps": "messages out a second: 10 s, 60 s, 600 s",
    "putLatency99": "a put takes at most, 99 of 100 (ms)",
    "putLatency999": "999 of 1,000 (ms)",
    "putMessageFailedTimes": "puts that failed",
    "remainHowManyDataToFlush": "not flushed to the disk yet",
    "dispatchBehindBytes": "bytes not dispatched yet",
    "commitLogMinOffset": "log begins at",
    "commitLogMaxOffset": "log ends at",
}


def store_page(source: Source, page: int) -> dict[str, Any]:
    """The facts of the page."""
    store = source.store
    files = list(reversed(store.log.queue.files))
    found: Paged[Any] = paged(files, page, _FILES_SHOWN)
    facts: dict[str, Any] = {
        "paged": found,
        "files": [_log_file(store, file) for file in found.items],
        "index": [
            {
                "name": Path(file.path).name,
                "entries": max(0, file.entry_count),
                "begin_ms": file.header.begin_timestamp_ms,
                "end_ms": file.header.end_timestamp_ms,
            }
            for file in reversed(index_files(store)[-_FILES_SHOWN:])
        ],
        "why_not_writable": store.why_not_writable(),
        "deletions": _deletions(source),
        "trace": list(reversed(store.trace()[-_EVENTS_SHOWN:])),
        "settings": _settings(store),
    }
    if isinstance(store, DefaultMessageStore):
        told = store.stats()
        facts["stats"] = [(words, told[name]) for name, words in _STATS.items() if name in told]
        facts["delays"] = sorted(store.delay_offsets().items())
    if isinstance(source, BrokerSource):
        facts["replication"] = _replication(source)
    return facts


def _log_file(store: Store, file: Any) -> dict[str, Any]:
    stat = Path(file.path).stat()
    end = min(file.file_from_offset + file.size, store.max_phy_offset)
    return {
        "name": Path(file.path).name,
        "start": file.file_from_offset,
        "used": max(0, end - file.file_from_offset),
        "size": file.size,
        "on_disk": stat.st_blocks * 512,
        "modified_ms": stat.st_mtime_ns // 1_000_000,
    }


def _deletions(source: Source) -> list[tuple[str, str]]:
    """(log file, why and when) of what retention deletes next."""
    store = source.store
    if isinstance(store, DefaultMessageStore):
        names = [Path(file.path).name for file in store.log.queue.files[:8]]
        told = [(name, store.why_will_be_deleted(name)) for name in names]
        return [(name, why) for name, why in told if why]
    try:
        facts = explain(source.path, config=store.config).facts
    except (RmqCoreError, OSError):
        return []
    return [
        (what.removeprefix("log file "), why) for what, why in facts if what.startswith("log file ")
    ]


def _settings(store: Store) -> list[tuple[str, str]]:
    pairs = (line.partition("=") for line in store.broker_conf().splitlines())
    return [(name, value) for name, equals, value in pairs if equals]


def _replication(source: BrokerSource) -> dict[str, Any]:
    managers = source.managers
    told: Mapping[str, Any] = {} if managers is None else managers.ha_status()
    config = source.broker.config
    return {
        "role": "slave" if config.is_slave else "master",
        "name": config.broker_name,
        "id": config.broker_id,
        "slaves": list(told.get("haConnectionInfo", ())),
        "client": dict(told.get("haClientRuntimeInfo", {})),
    }


def verified(source: Source) -> VerifyReport:
    """Verify the store, for so long as a page may take; raises as `verify`."""
    return verify(source.path, config=source.store.config, max_duration_s=VERIFY_S)


def planned(source: Source) -> RepairPlan:
    """What the doctor would do; raises as `plan`. Changes nothing."""
    return plan(source.path, config=source.store.config)
