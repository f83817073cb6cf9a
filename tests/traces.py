"""What a failing test shows of its stores: their last events."""

import time
from itertools import islice

from rmqcore.files.store_trace import read_trace
from rmqcore.store.open_stores import OPEN_STORES

#: stores that are shown at most
STORES_MAX = 8


def lines_of(rows):
    """The rows of a trace as lines of text."""
    lines = []
    for row in rows:
        clock = time.strftime("%H:%M:%S", time.localtime(row.time_ms // 1000))
        lines.append(
            f"{clock}.{row.time_ms % 1000:03} {row.thread or '-':25.25} {row.event:10} "
            f"end {row.log_end:<9} flushed {row.flushed:<9} dispatched {row.dispatched:<9} "
            f"{row.count} {row.words}".rstrip()
        )
    return lines


def traces_of(item):
    """The sections of a failing test's report: (title, text) of each store that it had.

    Those that lie in the test's `tmp_path`, be they open, closed, or a killed process's; and all
    others that are open.
    """
    opened = {store.path: store for store in list(OPEN_STORES)}
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    files = sorted(folder.glob("**/config/storeTrace")) if folder is not None else []
    paths = dict.fromkeys([*(file.parent.parent for file in files), *opened])
    sections = []
    for path in islice(paths, STORES_MAX):
        file = path / "config/storeTrace"
        rows = opened[path].trace() if path in opened else read_trace(file)
        sections.append((f"trace of {path}", "\n".join(lines_of(rows))))
    return sections
