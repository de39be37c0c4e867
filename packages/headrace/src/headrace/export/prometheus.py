"""Metrics for Prometheus, by its own client library, over HTTP on this machine only."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from headrace.errors import ConfigError, require
from headrace.records import LoaderStats

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

# Never 0.0.0.0: whoever wants the figures elsewhere puts something that checks who asks in between.
LOOPBACK = "127.0.0.1"
# (name, what it is, value, or None if there is none yet)
Scalar = tuple[str, str, Callable[[LoaderStats], float | None]]


def _remote(name: str) -> Callable[[LoaderStats], float | None]:
    """A figure of a dataset of URLs; other datasets have none."""
    return lambda stats: None if stats.remote is None else getattr(stats.remote, name)


def _of_stages(name: str) -> Callable[[LoaderStats], dict[str, float]]:
    return lambda stats: {stage.name: getattr(stage, name) for stage in stats.stages}


def _failed(stats: LoaderStats) -> dict[str, float]:
    return {action: sum(f.action == action for f in stats.failures) for action in ("skipped", "replaced")}


COUNTERS: tuple[Scalar, ...] = (
    ("batches", "Batches that the training loop received.", lambda s: s.batches),
    ("samples", "Samples that the training loop received.", lambda s: s.samples),
    ("epochs_begun", "Epochs that were started.", lambda s: s.epochs_begun),
    ("startup_seconds", "From the starts of epochs to their first batches.", lambda s: s.startup_seconds),
    ("stale_entries", "Samples whose file has changed since headrace index.", lambda s: s.stale_entries),
    ("remote_fetched_bytes", "Bytes that requests to stores brought.", _remote("bytes_fetched")),
    ("remote_requests", "Requests to stores that succeeded.", _remote("requests")),
    ("cache_hits", "Records that the node's cache held when they were asked for.", _remote("cache_hits")),
    ("cache_misses", "Records that the node's cache didn't hold.", _remote("cache_misses")),
    ("cache_evictions", "Records that were removed from the cache to make room.", _remote("cache_evictions")),
)
GAUGES: tuple[Scalar, ...] = (
    ("memory_used_bytes", "Batches in flight or still held.", lambda s: s.memory_used),
    ("memory_allowed_bytes", "The memory budget.", lambda s: s.memory_allowed),
    ("in_flight_batches", "Batches being made, or waiting to be received.", lambda s: s.in_flight),
    ("decode_threads", "Native decode threads that run.", lambda s: s.decode_threads),
    ("read_threads", "Native read threads that run.", lambda s: s.read_threads),
    (
        "remote_latency_seconds",
        "From a request to a store to its first byte: a running mean.",
        _remote("latency_seconds"),
    ),
    ("cache_used_bytes", "Held by the cache, for all processes of the node.", _remote("cache_bytes")),
    ("cache_capacity_bytes", "What the cache may hold.", _remote("cache_capacity")),
    ("epoch", "Number of the epoch started last.", lambda s: s.epochs[-1].number if s.epochs else None),
    (
        "epoch_stall_ratio",
        "What the latest epoch's steps waited, of its time after the start-up: 0 to 1.",
        lambda s: s.epochs[-1].stall_share if s.epochs else None,
    ),
    (
        "queue_depth_batches",
        "Batches that may be in flight.",
        lambda s: s.epochs[-1].queue.depth or None if s.epochs else None,
    ),
    (
        "queue_ready_batches",
        "Batches that were ready when a step asked for one: the latest epoch's mean.",
        lambda s: s.epochs[-1].queue.ready if s.epochs and s.epochs[-1].queue.depth else None,
    ),
)
# (name, what it is, name of a label, numbers by its values)
LABELED_COUNTERS: tuple[tuple[str, str, str, Callable[[LoaderStats], Mapping[str, float]]], ...] = (
    ("stage_samples", "Samples that went through the stage.", "stage", _of_stages("samples")),
    ("stage_seconds", "Thread time that the stage took.", "stage", _of_stages("seconds")),
    ("stage_bytes", "Bytes that the stage read, wrote or copied.", "stage", _of_stages("bytes")),
    ("decoded_samples", "Samples by what decoded them.", "decoder", lambda stats: stats.decoded_by),
    ("failed_samples", "Samples that couldn't be loaded.", "action", _failed),
)


class HasStats(Protocol):
    """A `headrace.DataLoader`."""

    def stats(self) -> LoaderStats:
        """Statistics so far, for any thread."""


class Collector:
    """Metrics that the client library asks for at every scrape; it may be registered with any registry.

    Args:
        loaders: by the name that the label `loader` is to have.
    """

    def __init__(self, loaders: Mapping[str, HasStats]) -> None:
        self._loaders = dict(loaders)

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics of all loaders."""
        from prometheus_client import metrics_core as metrics

        stats = {name: loader.stats() for name, loader in self._loaders.items()}
        for kind, scalars in ((metrics.CounterMetricFamily, COUNTERS), (metrics.GaugeMetricFamily, GAUGES)):
            for metric, text, value in scalars:
                family = kind(f"headrace_{metric}", text, labels=("loader",))
                for name, each in stats.items():
                    number = value(each)
                    if number is not None:
                        family.add_metric((name,), number)
                yield family
        text = "What steps after the first of an epoch waited."
        waits = metrics.HistogramMetricFamily("headrace_stall_seconds", text, labels=("loader",))
        for name, each in stats.items():
            waits.add_metric((name,), [(_bound(b), n) for b, n in each.waits], each.stall_seconds)
        yield waits
        for metric, text, label, values in LABELED_COUNTERS:
            family = metrics.CounterMetricFamily(f"headrace_{metric}", text, labels=("loader", label))
            for name, each in stats.items():
                for value_of_label, count in values(each).items():
                    family.add_metric((name, value_of_label), count)
            yield family


def _bound(seconds: float) -> str:
    return repr(seconds) if math.isfinite(seconds) else "+Inf"


class MetricsServer(AbstractContextManager["MetricsServer"]):
    """Serves what loaders count to Prometheus, at http://127.0.0.1:PORT/metrics, until it is closed.

    A daemon thread does it. Until then its loaders are kept.

    Args:
        loaders: by the value of the label `loader`: ``{"train": …, "val": …}``.
        port: TCP port; 0 takes one that is free.

    Attributes:
        port: that it listens on.
        url: what to scrape.

    Raises:
        ConfigError: `prometheus_client` isn't installed, or the port can't be had.
    """

    def __init__(self, loaders: Mapping[str, HasStats], port: int) -> None:
        client = require("prometheus_client", "metrics")
        registry = client.CollectorRegistry()
        registry.register(Collector(loaders))
        try:
            self._server, self._thread = client.start_http_server(port, LOOPBACK, registry)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"port ({port}) can't be listened on: {error}. port=0 takes one that is free; one server"
                " takes several loaders: headrace.export.MetricsServer({'train': …, 'val': …}, port)."
            ) from error
        self._pid = os.getpid()
        self.port: int = self._server.server_port
        self.url = f"http://{LOOPBACK}:{self.port}/metrics"

    def close(self) -> None:
        """Ends the server; does nothing the second time, or in a forked child."""
        if self._pid == os.getpid() and self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def __exit__(self, *_: object) -> None:
        self.close()
