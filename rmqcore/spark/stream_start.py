"""Where a stream began: that counts as long as its checkpoint does, whatever later runs ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from rmqcore.errors import ConfigError
from rmqcore.spark.cluster_options import ClusterOptions
from rmqcore.spark.options import ReadOptions

#: In an offset, what the options said when the query began.
STARTING: Final = "starting"
_ATTRIBUTES: Final = {
    "offsets": "starting_offsets",
    "phy_offset": "starting_phy_offset",
    "timestamp": "starting_timestamp",
    "times": "starting_times",
}


def start_of(options: ReadOptions) -> dict[str, Any]:
    """What options say about the rows that a stream begins with, for its offsets.

    ``earliest`` and ``latest`` are places in logs, which an offset has.
    """
    found = {name: getattr(options, attribute) for name, attribute in _ATTRIBUTES.items()}
    words = (None, "earliest", "latest")
    return {name: value for name, value in found.items() if value not in words}


def as_begun(options: ReadOptions, starting: Any) -> ReadOptions:
    """Options of a run as if it had been asked for the start that the query had.

    Args:
        options: of this run.
        starting: what `start_of` has made; None where an offset of an earlier release has none.

    Raises:
        ConfigError: it is something else.
    """
    if starting is None:
        return options
    try:
        found = {
            attribute: _hashable(starting.get(name)) for name, attribute in _ATTRIBUTES.items()
        }
    except (AttributeError, TypeError):
        raise ConfigError("checkpointLocation", starting, "expected a start") from None
    return replace(options, **found)


def cluster_start_of(options: ClusterOptions) -> dict[str, Any]:
    """As `start_of`, of a cluster: times only, since an offset has the number in each queue."""
    return start_of(_with_times(options.read, options.starting_times))


def cluster_as_begun(options: ClusterOptions, starting: Any) -> ClusterOptions:
    """As `as_begun`, of a cluster.

    Args:
        options: of this run.
        starting: what `cluster_start_of` has made, or None.

    Raises:
        ConfigError: it is something else.
    """
    read = as_begun(_with_times(options.read, options.starting_times), starting)
    times: Any = read.starting_times
    return replace(options, read=read, starting_times=times)


def _with_times(options: ReadOptions, times: Any) -> ReadOptions:
    return replace(options, starting_times=times)


def _hashable(value: Any) -> Any:
    """Queue offsets, which JSON has as lists."""
    return tuple(tuple(each) for each in value) if isinstance(value, list | tuple) else value
