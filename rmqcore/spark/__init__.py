"""RocketMQ stores in Spark: ``spark.read.format("rmq").load(store)``. No jar, no broker.

Floor: F8; needs the extra [spark].
"""

from rmqcore.spark.analysis import compact, hottest_keys, trace, traffic
from rmqcore.spark.jobs import audit, export, findings_frame, rebuild_consume_queues, rebuild_index
from rmqcore.spark.pipeline import PipelineReport, run_pipeline
from rmqcore.spark.plot import traffic_page
from rmqcore.spark.read import read
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
    "hottest_keys",
    "local_session",
    "read",
    "rebuild_consume_queues",
    "rebuild_index",
    "run_pipeline",
    "trace",
    "traffic",
    "traffic_page",
]
