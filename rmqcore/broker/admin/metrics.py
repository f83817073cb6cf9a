"""A broker's metrics under RocketMQ's names, as Prometheus reads them; needs the extra `metrics`.

Source: RocketMQ broker/metrics/BrokerMetricsManager.java, DefaultStoreMetricsManager.java.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from rmqcore.broker.admin.stored_time import stored_ms
from rmqcore.broker.state.broker_state import BrokerState
from rmqcore.broker.state.traffic import SIZE_BOUNDS
from rmqcore.errors import ConfigError

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_NODE: Final = ("cluster", "node_type", "node_id")


class Metrics:
    """Collects when it is asked to; costs nothing in between.

    Args:
        state: of the broker; None as long as it does not serve.

    Raises:
        ConfigError: the extra is not installed.
    """

    def __init__(self, state: Callable[[], BrokerState | None]) -> None:
        try:
            import prometheus_client  # noqa: PLC0415 - an extra
            from prometheus_client import core  # noqa: PLC0415 - an extra
        except ImportError as error:
            rule = "not without the extra: pip install 'rmqcore[metrics]'"
            raise ConfigError("metrics_port", "", rule) from error
        self._core = core
        self._state = state
        self._registry = prometheus_client.CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._generate = prometheus_client.generate_latest

    def text(self) -> bytes:
        """All metrics in Prometheus' text format; may be called on any thread."""
        return bytes(self._generate(self._registry))

    def describe(self) -> list[Any]:
        """Names are not known before there is something to count: see prometheus_client."""
        return []

    def collect(self) -> Iterator[Any]:
        """One family after the other: see prometheus_client."""
        state = self._state()
        if state is None:
            return
        config = state.config()
        node = (config.broker_cluster_name, "broker", config.broker_name)
        yield from self._traffic(state, node)
        yield from self._numbers(state, node)
        yield from self._connections(state, node)
        yield from self._lags(state, node)
        yield from self._replication(state, node)

    # ---- families

    def _counter(self, name: str, about: str, labels: tuple[str, ...]) -> Any:
        return self._core.CounterMetricFamily(name, about, labels=_NODE + labels)

    def _gauge(self, name: str, about: str, labels: tuple[str, ...] = ()) -> Any:
        return self._core.GaugeMetricFamily(name, about, labels=_NODE + labels)

    def _traffic(self, state: BrokerState, node: tuple[str, ...]) -> Iterator[Any]:
        traffic = state.traffic
        by_type, by_group = ("topic", "message_type"), ("topic", "consumer_group")
        messages = self._counter("rocketmq_messages_in", "messages stored", by_type)
        size = self._counter("rocketmq_throughput_in", "bytes stored", by_type)
        sizes = self._core.HistogramMetricFamily(
            "rocketmq_message_size", "bytes of a message", labels=_NODE + by_type
        )
        for key, stored in list(traffic.stored.items()):
            messages.add_metric(node + key, stored.messages)
            size.add_metric(node + key, stored.size)
            counts, total = list(stored.by_size), 0
            buckets = []
            for bound, count in zip((*SIZE_BOUNDS, "+Inf"), counts, strict=True):
                total += count
                buckets.append((str(bound), total))
            sizes.add_metric(node + key, buckets, stored.size)
        yield from (messages, size, sizes)
        messages = self._counter("rocketmq_messages_out", "messages pulled", by_group)
        size = self._counter("rocketmq_throughput_out", "bytes pulled", by_group)
        for key, fetched in list(traffic.fetched.items()):
            messages.add_metric(node + key, fetched.messages)
            size.add_metric(node + key, fetched.size)
        yield from (messages, size)
        dead = self._counter("rocketmq_send_to_dlq_messages", "dead letters", by_group)
        for key, count in list(traffic.dead.items()):
            dead.add_metric(node + key, count)
        yield dead
        passed_over = self._counter(
            "rocketmq_records_passed_over",
            "records that a service could not handle and has gone on behind",
            ("service",),
        )
        skipped = state.store.delay_skipped_count()
        for service, count in (state.passed_over.counts | {"delay": skipped}).items():
            passed_over.add_metric((*node, service), count)
        yield passed_over
        held = self._gauge(
            "rocketmq_records_held_back",
            "messages in the log that the next start comes to: their queues' files are damaged",
            ("service",),
        )
        for service, count in (
            state.passed_over.held_counts | {"delay": state.store.delay_held_count()}
        ).items():
            held.add_metric((*node, service), count)
        yield held

    def _numbers(self, state: BrokerState, node: tuple[str, ...]) -> Iterator[Any]:
        store, stats = state.store, state.store.stats()
        numbers = {
            "rocketmq_topic_number": ("topics", len(state.topics.table)),
            "rocketmq_consumer_group_number": ("groups", len(state.groups.table.names())),
            "rocketmq_broker_permission": (
                "4 read, 2 write",
                state.config().broker_permission,
            ),
            "rocketmq_storage_size": (
                "bytes of the log",
                store.max_phy_offset - int(stats["commitLogMinOffset"]),
            ),
            "rocketmq_storage_flush_behind_bytes": (
                "bytes stored that are not on the disk yet",
                int(stats["remainHowManyDataToFlush"].split()[0]),
            ),
            "rocketmq_storage_dispatch_behind_bytes": (
                "bytes stored that consumers do not see yet",
                int(stats["dispatchBehindBytes"]),
            ),
        }
        for name, (about, number) in numbers.items():
            family = self._gauge(name, about)
            family.add_metric(node, number)
            yield family

    def _connections(self, state: BrokerState, node: tuple[str, ...]) -> Iterator[Any]:
        producers = self._gauge(
            "rocketmq_producer_connections", "producers", ("language", "version")
        )
        clients = [c for group in list(state.producers.groups.values()) for c in _each(group)]
        for (language, version), count in Counter(
            (client.language.name.lower(), str(client.version)) for client in clients
        ).items():
            producers.add_metric((*node, language, version), count)
        yield producers
        labels = ("consumer_group", "consume_mode", "language", "version")
        consumers = self._gauge("rocketmq_consumer_connections", "consumers", labels)
        for group in list(state.consumers.groups.values()):
            mode = "pull" if group.consume_type == "CONSUME_ACTIVELY" else "push"
            for (language, version), count in Counter(
                (client.language.name.lower(), str(client.version))
                for client in _each(group.clients)
            ).items():
                consumers.add_metric((*node, group.name, mode, language, version), count)
        yield consumers

    def _lags(self, state: BrokerState, node: tuple[str, ...]) -> Iterator[Any]:
        """How far the groups are behind, of which a client is there or which have consumed."""
        labels, store = ("topic", "consumer_group"), state.store
        lags = self._gauge("rocketmq_consumer_lag_messages", "messages not consumed", labels)
        ready = self._gauge("rocketmq_consumer_ready_messages", "messages not consumed", labels)
        latency = self._gauge(
            "rocketmq_consumer_lag_latency", "milliseconds that the oldest of them waits", labels
        )
        for topic, group in sorted(store.consumer_offsets.pairs()):
            behind, oldest_ms = 0, 0
            for queue_id, offset in store.consumer_offsets.queues(topic, group).items():
                missing = store.max_queue_offset(topic, queue_id) - offset
                if missing > 0:
                    behind += missing
                    now_ms = state.world.clock_ms()
                    at_ms = stored_ms(store, topic, queue_id, offset, now_ms)
                    oldest_ms = max(oldest_ms, now_ms - at_ms)
            for family, value in ((lags, behind), (ready, behind), (latency, oldest_ms)):
                family.add_metric((*node, topic, group), value)
        yield from (lags, ready, latency)

    def _replication(self, state: BrokerState, node: tuple[str, ...]) -> Iterator[Any]:
        """How far slaves are behind, and whether replication stands still."""
        told = state.ha_status()
        slaves = list(told.get("haConnectionInfo", ()))
        behind = self._gauge("rocketmq_ha_slave_behind_bytes", "bytes a slave lacks", ("slave",))
        for slave in slaves:
            behind.add_metric((*node, slave["addr"]), slave["diff"])
        sides = [*slaves, told.get("haClientRuntimeInfo", {})]
        problem = self._gauge("rocketmq_ha_problem", "connections on which a log cannot go on")
        problem.add_metric(node, sum("problem" in side for side in sides))
        yield from (behind, problem)


def _each(clients: Any) -> Iterable[Any]:
    return list(clients.values())
