"""The store itself: its log files, dispatch, index, what retention deletes next, replication."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rmqcore.doctor.explain import explain
from rmqcore.doctor.explanation import Explanation
from rmqcore.doctor.findings import VerifyReport
from rmqcore.doctor.plan import RepairPlan, plan
from rmqcore.doctor.verify import verify
from rmqcore.store.message_store import DefaultMessageStore
from rmqcore.web.paging import Paged, paged
from rmqcore.web.shown import rates_text
from rmqcore.web.source import BrokerSource, Source, Store, index_files

_FILES_SHOWN: Final = 30
_NEXT_SHOWN: Final = 8
_EVENTS_SHOWN: Final = 40
#: A verification from a page walks over the log no longer than this.
VERIFY_S: Final = 20.0
#: The page shows these values of the runtime info: rates first, then plain ones.
_RATES: Final = {"putTps": "In a second", "getTransferredTps": "Out a second"}
_STATS: Final = {
    "putLatency99": "99 of 100 puts take at most (ms)",
    "putLatency999": "999 of 1,000 puts take at most (ms)",
    "putMessageFailedTimes": "Puts that failed",
    "remainHowManyDataToFlush": "Not flushed to the disk yet (bytes)",
    "dispatchBehindBytes": "Not dispatched yet (bytes)",
    "commitLogMinOffset": "The log begins at",
    "commitLogMaxOffset": "The log ends at",
}


def store_page(source: Source, page: int) -> dict[str, Any]:
    """The facts of the page.

    Args:
        source: of the store.
        page: of its log files, from 1 on.

    Returns:
        what the template names.
    """
    store = source.store
    files = list(reversed(store.log.queue.files))
    found: Paged[Any] = paged(files, page, _FILES_SHOWN)
    facts: dict[str, Any] = {
        "paged": found,
        "files": [_log_file(store, file) for file in found.items],
        "index": index_files(store)[: -_FILES_SHOWN - 1 : -1],
        **_puts_and_deletions(store),
        "trace": list(reversed(store.trace()[-_EVENTS_SHOWN:])),
        "settings": _settings(store),
    }
    if isinstance(store, DefaultMessageStore):
        told = store.stats()
        facts["stats"] = [(words, rates_text(told[name])) for name, words in _RATES.items()]
        facts["stats"] += [(words, told[name]) for name, words in _STATS.items()]
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


def _puts_and_deletions(store: Store) -> dict[str, Any]:
    """Why puts are refused; where they may come, also which log files retention deletes next."""
    if isinstance(store, DefaultMessageStore):
        names = [Path(file.path).name for file in store.log.queue.files[:_NEXT_SHOWN]]
        told = [(name, store.why_will_be_deleted(name)) for name in names]
        refused = store.why_not_writable()
        return {
            "refused": refused is not None,
            "puts": refused or "accepted",
            "deletions": [(name, why) for name, why in told if why],
        }
    return {"refused": False, "puts": "none from here: it is open for reading only"}


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
        "client": dict(told.get("haClientRuntimeInfo", {})) if config.is_slave else {},
    }


def verified(source: Source) -> VerifyReport:
    """Verify the store, for so long as a page may take; raises as `verify`."""
    return verify(source.path, config=source.store.config, max_duration_s=VERIFY_S)


def explained(source: Source) -> Explanation:
    """Why puts would be refused, and what retention would delete; raises as `explain`."""
    return explain(source.path, config=source.store.config)


def planned(source: Source) -> RepairPlan:
    """What the doctor would do; raises as `plan`. Changes nothing."""
    return plan(source.path, config=source.store.config)
