"""Files of settings: a ``broker.conf`` read and written, and what ``open_store`` was asked for."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from rmqcore.config.store_config import (
    DEFAULT_MAX_MESSAGE_SIZE,
    GEOMETRY,
    SETTINGS,
    StoreConfig,
    is_known,
    resolve,
    resolve_one,
    suggestion,
)
from rmqcore.errors import ConfigError, ConfigWarning
from rmqcore.java.properties import (
    format_property,
    parse_properties,
    properties_by_line,
    read_properties,
)

#: the line that ``mqadmin getBrokerConfig`` prints above the settings of each broker
_DUMP_HEAD = re.compile(r"=+[^=]+(?:=+[^=]+)?=+")


def load_config(
    config: StoreConfig | Mapping[str, object] | str | Path | None = None,
    *,
    profile: str | None = None,
    **settings: object,
) -> StoreConfig:
    """Make the configuration that ``open_store`` was asked for.

    Args:
        config: a ready object, a path to a ``broker.conf`` (also what ``mqadmin getBrokerConfig``
            prints of one broker), a mapping of names, or None.
        profile: defaults of what is not given; "embedded" unless ``config`` is an object, which
            brings its own.
        settings: single settings; they win over ``config``. Names as in
            `StoreConfig.from_properties`.

    Raises:
        ConfigError: see `StoreConfig.from_properties`; of a file, all that is wrong in it, each
            with its line.
        OSError: the file cannot be read.

    Warns:
        ConfigWarning: a name in a file that neither RocketMQ nor rmqcore knows. RocketMQ passes
            over it, and so does this.
    """
    if profile is not None:
        settings = {"profile": profile, **settings}
    if isinstance(config, StoreConfig):
        return config.with_settings(settings) if settings else config
    from_config: dict[str, Any]
    sources: dict[str, str] = {}
    if isinstance(config, str | Path):
        from_config, ignored, sources = _of_file(Path(config))
    else:
        from_config, ignored = resolve(config or {})
    from_settings, also_ignored = resolve(settings)
    return StoreConfig(
        **({"profile": "embedded"} | from_config | from_settings),
        ignored={**ignored, **also_ignored},
        sources={name: at for name, at in sources.items() if name not in from_settings},
    )


def parse_broker_conf(source: str | Path) -> dict[str, str]:
    """Read the properties of a ``broker.conf``: a `Path` names the file, a str is its text.

    Raises:
        ConfigError: the syntax is not that of a Java properties file.
        OSError: the file cannot be read.
    """
    return parse_properties(source if isinstance(source, str) else read_properties(source))


def to_broker_conf(
    config: StoreConfig, *, path: str | Path | None = None, every: bool = False
) -> str:
    """The lines with which RocketMQ opens a store of this configuration.

    Args:
        config: what to write: the file sizes, what differs from RocketMQ's defaults, and what was
            given without a meaning for a store.
        path: the store's directory, when its place is to be written too.
        every: whether what is as RocketMQ's default is written, too.

    Returns:
        Properties text that `parse_broker_conf` reads back.
    """
    values: dict[str, object] = {}
    if path is not None:
        values["storePathRootDir"] = path
        values["storePathCommitLog"] = Path(path) / "commitlog"
    for name, item in SETTINGS.items():
        value = getattr(config, name)
        if name == "max_message_size":
            value = config.effective_max_message_size
            usual = value == DEFAULT_MAX_MESSAGE_SIZE
        else:
            usual = value == item.default and name not in GEOMETRY
        if item.metadata["java"] and value is not None and (every or not usual):
            values[item.metadata["java"]] = value
    values = {**config.ignored, **values}
    return "".join(format_property(name, _text(value)) + "\n" for name, value in values.items())


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _of_file(path: Path) -> tuple[dict[str, Any], dict[str, object], dict[str, str]]:
    """Settings of a file, what has no meaning for a store, and the place of each."""
    entries = _entries(path)
    properties = {name: value for name, (value, _) in entries.items()}
    settings: dict[str, Any] = {}
    ignored: dict[str, object] = {}
    sources: dict[str, str] = {}
    wrong: list[ConfigError] = []
    for name, (value, line) in entries.items():
        at = f"{path}:{line}"
        if not is_known(name):
            text = f"{at}: {name}: no such setting, it is passed over{suggestion(name)}"
            warnings.warn(text, ConfigWarning, stacklevel=4)
            ignored[name] = value
            continue
        try:
            sources[resolve_one(name, properties, settings, ignored) or name] = at
        except ConfigError as error:
            wrong.append(ConfigError(error.field, error.value, error.rule, at))
    if wrong:
        first = wrong[0]
        rule = "; ".join([first.rule, *map(str, wrong[1:])])
        raise ConfigError(first.field, first.value, rule, first.source)
    return settings, ignored, sources


def _entries(path: Path) -> dict[str, tuple[str, int]]:
    """Names of a file with value and line; of a name given twice the last counts, as in Java.

    Raises:
        ConfigError: the file holds the dumps of several brokers, or an escape is wrong.
    """
    entries: dict[str, tuple[str, int]] = {}
    brokers = 0
    try:
        for name, value, line in properties_by_line(read_properties(path)):
            if name or not _DUMP_HEAD.fullmatch("=" + value):
                entries[name] = value, line
                continue
            brokers += 1
            if brokers > 1 and entries:
                _refuse_second_broker("=" + value, line)
    except ConfigError as error:
        at = f"{path}:{error.source}"
        raise ConfigError(error.field, error.value, error.rule, at) from None
    return entries


def _refuse_second_broker(head: str, line: int) -> NoReturn:
    raise ConfigError(head, "", "a second broker's settings; keep those of one", str(line))
