"""RocketMQ in Spark: ``spark.read.format("rmq").load(store)``, or of a running cluster.

Never needs a jar. Names are imported when they are first used: Spark imports this
package in each of its Python processes, which need only the data source.

Floor: F8.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmqcore.spark.analysis import compact, hottest_keys, trace, traffic
    from rmqcore.spark.jobs import (
        audit,
        export,
        findings_frame,
        rebuild_consume_queues,
        rebuild_index,
    )
    from rmqcore.spark.log_owner import finish_appends
    from rmqcore.spark.pipeline import PipelineReport, run_pipeline
    from rmqcore.spark.plot import save_traffic, traffic_page
    from rmqcore.spark.reader import read
    from rmqcore.spark.session import SparkMissingError, local_session
    from rmqcore.spark.source import RmqSource

__all__ = [
    "PipelineReport",
    "RmqSource",
    "SparkMissingError",
    "audit",
    "compact",
    "export",
    "findings_frame",
    "finish_appends",
    "hottest_keys",
    "local_session",
    "read",
    "rebuild_consume_queues",
    "rebuild_index",
    "run_pipeline",
    "save_traffic",
    "trace",
    "traffic",
    "traffic_page",
]
_MODULES = {
    "analysis": ("compact", "hottest_keys", "trace", "traffic"),
    "jobs": ("audit", "export", "findings_frame", "rebuild_consume_queues", "rebuild_index"),
    "log_owner": ("finish_appends",),
    "pipeline": ("PipelineReport", "run_pipeline"),
    "plot": ("save_traffic", "traffic_page"),
    "reader": ("read",),
    "session": ("SparkMissingError", "local_session"),
    "source": ("RmqSource",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
