"""RocketMQ stores in Spark: ``spark.read.format("rmq").load(store)``. No jar, no broker.

Floor: F8; needs the extra [spark].
"""

from rmqcore.spark.source import RmqSource

__all__ = ["RmqSource"]
