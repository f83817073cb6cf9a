"""Write the tables of requests in docs/broker.md from what handlers declare with `serves`.

Usage: python scripts/requests_page.py [--check]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from rmqcore.broker.requests import HANDLERS
from rmqcore.namesrv.requests import NamesrvRequests
from rmqcore.remoting import RequestCode
from rmqcore.remoting.needs import AdminOnly, Rule
from rmqcore.remoting.serves import Served, declared_by

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "broker.md"
BEGIN: Final = "<!-- from here on written by scripts/requests_page.py from declarations -->\n"
HEAD: Final = "| code | name | who may send it | what |\n|---|---|---|---|\n"
#: Why codes of a pattern are not served; the first one that fits counts.
REASONS: Final = (
    (
        r"\w+_ACL_(INFO|CONFIG)|\w+_WHITE_ADDRS_CONFIG|DELETE_ACL_CONFIG",
        "of 4.9; users and rules are set where the broker is started",
    ),
    (r"AUTH_\w+", "users and rules are set where the broker is started"),
    (
        r"CHECK_TRANSACTION_STATE|NOTIFY_CONSUMER_IDS_CHANGED|RESET_CONSUMER_CLIENT_OFFSET"
        r"|GET_CONSUMER_STATUS_FROM_CLIENT|PUSH_REPLY_MESSAGE_TO_CLIENT",
        "the broker sends it, clients answer",
    ),
    (r"\w+ROCKSDB\w+|POP_ROLLBACK", "RocksDB files are not kept"),
    (r"NOTIFY_MIN_BROKER_ID_CHANGE|EXCHANGE_BROKER_HA_INFO", "no slave acts as master"),
    (r"\w+_COLD_DATA_FLOW_CTR_\w+|SET_COMMITLOG_READ_MODE", "reads are not held back by their age"),
    (
        r"(\w+_)?LITE_(MESSAGE|SUBSCRIPTION_CTL|INFO|DISPATCH|\w+_INFO)|NOTIFY_UNSUBSCRIBE_LITE"
        r"|GET_PARENT_TOPIC_INFO",
        "the proxy's, for lite topics",
    ),
    (r"SWITCH_TIMER_ENGINE", "there is one timer"),
    (
        r"CONTROLLER_\w+|\w+_CONTROLLER_CONFIG|(ADD|REMOVE)_BROKER|GET_BROKER_EPOCH_CACHE"
        r"|\w+_REQUEST|NOTIFY_BROKER_ROLE_CHANGED|CLEAN_BROKER_DATA",
        "the controller's",
    ),
    (
        r"QUERY_BROKER_OFFSET|GET_TOPIC_(CONFIG|NAME)_LIST|TRIGGER_DELETE_FILES|GET_CLIENT_CONFIG"
        r"|(SUSPEND|RESUME)_CONSUMER|RESET_CONSUMER_OFFSET_IN_\w+|ADJUST_CONSUMER_THREAD_POOL"
        r"|WHO_CONSUME_THE_MESSAGE|REGISTER_FILTER_SERVER|REGISTER_MESSAGE_FILTER_CLASS"
        r"|QUERY_CORRECTION_OFFSET",
        "no client of 4.9 or later sends it",
    ),
)


def tables() -> str:
    """Both tables: the broker's, of every code that there is, and the name server's."""
    served = {each.code: each for each in declared_by(*HANDLERS)}
    elsewhere = {each.code: each for each in declared_by(NamesrvRequests)}
    rows = [
        row(served[code]) if code in served else refused(code, code in elsewhere)
        for code in RequestCode
    ]
    others = [row(each) for _, each in sorted(elsewhere.items())]
    return f"{HEAD}{''.join(rows)}\n## Requests of a name server\n\n{HEAD}{''.join(others)}"


def row(served: Served) -> str:
    """One request that is served."""
    return line(served.code, allowed(served.needs), sentence(served.about))


def line(code: RequestCode, *cells: str) -> str:
    """One row of a table."""
    return f"| {' | '.join([str(int(code)), code.name, *cells])} |\n"


def refused(code: RequestCode, by_name_server: bool) -> str:
    """One request that a broker does not serve."""
    if by_name_server:
        return line(code, "not served", "a name server answers it")
    for pattern, reason in REASONS:
        if re.fullmatch(pattern, code.name):
            return line(code, "not served", reason)
    raise SystemExit(f"{code.name} is not served: say in {Path(__file__).name} why")


def allowed(needs: Rule) -> str:
    """Who may send a request, as its rule says."""
    about = needs.value if isinstance(needs, AdminOnly) else (needs.__doc__ or "").splitlines()[0]
    return about.rstrip(".")


def sentence(about: str) -> str:
    """What a docstring's first line says, as a cell."""
    about = about.rstrip(".").replace("|", chr(92) + "|")
    return about[:1].lower() + about[1:]


def main() -> int:
    """Write the page, or with --check say whether it differs; the exit code."""
    old = PAGE.read_text("utf-8")
    text = old[: old.index(BEGIN) + len(BEGIN)] + "\n" + tables()
    if old == text:
        return 0
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, "utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n")
    return int("--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
