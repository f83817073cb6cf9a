"""Write docs/settings.md from the settings of a store and of a broker, where they are declared.

Usage: python scripts/settings_page.py [--check]
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
from enum import StrEnum
from pathlib import Path

from rmqcore.broker.state.settings import BrokerConfig
from rmqcore.config import RETENTION_SETTINGS, StoreConfig
from rmqcore.config.store_config import SETTINGS
from rmqcore.ha.settings import HAConfig

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "settings.md"
HEAD = """\
# Settings

<!-- by scripts/settings_page.py from StoreConfig, BrokerConfig, HAConfig; change those -->

Every setting of a store: a keyword of `open_store` and of `StoreConfig`, a name of a mapping, a
line of a `broker.conf` (RocketMQ's name where there is one, else ours), or `-c NAME=VALUE` of the
command. Where settings come from and which wins is in [api.md](api.md). In a file, numbers are
decimal digits and switches `true` or `false`.

The default is that of a `StoreConfig()`, which is RocketMQ's; where a second one stands behind
"embedded", it is what `open_store` takes for a new store. *keeps* marks what switches retention on
when it is given: without one of these nothing is ever deleted.
"""
BROKERS = """
## Settings of a broker

Lines of a `broker.conf`, beside those of its store above, and `-c NAME=VALUE` of `rmqcore broker`;
in Python, the `properties` that `rmqcore.broker.Broker` takes, a mapping or a file, and fields of
`BrokerConfig`. What is *live* may be changed while the broker runs, by request 25
(`rmqcore admin updateBrokerConfig`); the others are read when it starts.

| RocketMQ's name | in Python | default | range | |
|---|---|---|---|---|
"""
REPLICATION = """
## Settings of replication

Further lines of a broker's file, and fields of `HAConfig`: what master and slave wait for.

| RocketMQ's name | in Python | default | range | |
|---|---|---|---|---|
"""
FOOT = """
## RocketMQ's other properties

Every property name of RocketMQ's configuration classes from 4.6 to 5.5 is known. Those without a
meaning for a store are kept in `config.ignored`, and `store.broker_conf()` gives them back. These
say that a store is of a kind that cannot be opened, and are refused by name:

| property | refused when | because |
|---|---|---|
| `enableDLegerCommitLog` | true | a DLedger log has records of its own around RocketMQ's |
| `storeType` | it names RocksDB | consume queues in RocksDB cannot be read |
| `readOnlyCommitLogStorePaths` | it names any | a log lies in one directory |
| `storePathCommitLog` | it holds a comma | a log lies in one directory |
| `enableConsumeQueueExt` | true, in mode "a" | extension files are read and not written |
"""


def comments(config: type) -> dict[str, tuple[str, str]]:
    """By setting of a class, the heading of its group and the comment above it."""
    text = Path(inspect.getfile(config)).read_text("utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    (owner,) = (
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == config.__name__
    )
    found, group = {}, ""
    at = owner.lineno
    for node in owner.body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        above = [line.strip() for line in lines[at : node.lineno - 1]]
        at = node.end_lineno
        for line in above:
            if heading := re.fullmatch(r"# (Affects \w+)\.", line):
                group = heading[1]
        said = " ".join(line[2:].strip() for line in above if line.startswith("#:"))
        found[node.target.id] = group, said
    return found


def page() -> str:
    """The page's text."""
    said = comments(StoreConfig)
    parts = [HEAD]
    groups = list(dict.fromkeys(said[name][0] for name in SETTINGS))
    for group in groups:
        parts.append(f"\n## {group}\n\n| setting | RocketMQ's name | default | range | |\n")
        parts.append("|---|---|---|---|---|\n")
        parts += [row(name, said[name][1]) for name in SETTINGS if said[name][0] == group]
    return "".join([*parts, BROKERS, *rows_of(BrokerConfig), REPLICATION, *rows_of(HAConfig), FOOT])


def row(name: str, said: str) -> str:
    """One setting as a row of the table."""
    item = SETTINGS[name]
    java = item.metadata["java"]
    text = sentence(said) + (" *keeps*" if name in RETENTION_SETTINGS else "")
    cells = [f"`{name}`", f"`{java}`" if java else "", default(name), allowed(item)]
    return line([*cells, text])


def rows_of(config: type) -> list[str]:
    """The table of a class of settings that a broker reads."""
    said = comments(config)
    return [broker_row(item, said[item.name][1]) for item in dataclasses.fields(config)]


def broker_row(item: dataclasses.Field[object], said: str) -> str:
    """One setting of a broker as a row of its table."""
    text = sentence(said) + (" *live*" if item.metadata["dynamic"] else "")
    java = item.metadata["java"] or item.name
    return line([f"`{java}`", f"`{item.name}`", literal(item.default), allowed(item), text])


def sentence(said: str) -> str:
    """A comment as a sentence."""
    return said[:1].upper() + said[1:]


def line(cells: list[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def default(name: str) -> str:
    """The default, and that of an embedded store where it is another."""
    usual, embedded = SETTINGS[name].default, getattr(StoreConfig.embedded(), name)
    if name == "profile":
        return '`"rocketmq"`; `open_store` takes "embedded"'
    other = f"; embedded: {literal(embedded)}" if _plain(embedded) != _plain(usual) else ""
    return literal(usual) + other


def _plain(value: object) -> object:
    return str(value) if isinstance(value, StrEnum) else value


def literal(value: object) -> str:
    """A default as it is written in Python; None means that it is not set."""
    if isinstance(value, str):
        return f'`"{value}"`'
    return "not set" if value is None else f"`{value!r}`"


def allowed(item: dataclasses.Field[object]) -> str:
    """The range of a number, or the names of a choice."""
    metadata = item.metadata
    kind, least, most = metadata["kind"], metadata["least"], metadata["most"]
    if issubclass(kind, StrEnum):
        return ", ".join(f"`{word}`" for word in kind)
    if least is None and most is None:
        return ""
    return f"from {least}" + (f" to {most}" if most is not None else "")


def main() -> int:
    """Write the page, or with --check say whether it differs; the exit code."""
    text = page()
    stale = not PAGE.exists() or PAGE.read_text("utf-8") != text
    if stale and "--check" not in sys.argv[1:]:
        PAGE.write_text(text, "utf-8")
    if stale:
        sys.stdout.write(f"{PAGE.relative_to(ROOT)}\n")
    return int("--check" in sys.argv[1:] and stale)


if __name__ == "__main__":
    sys.exit(main())
