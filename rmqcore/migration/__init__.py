"""Moving other brokers' stores into a RocketMQ store."""
