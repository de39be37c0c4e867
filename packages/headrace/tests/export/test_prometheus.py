"""What Prometheus gets over HTTP is what stats() says, of several loaders, and from this machine only."""

from __future__ import annotations

import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from torch.utils.data import TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.export import MetricsServer
from headrace.records import LoaderStats, RemoteStats
from support.jpegs import image_folder


@pytest.fixture
def loader(tmp_path: Path) -> headrace.DataLoader:
    steps = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()])
    dataset = ImageFolder(str(image_folder(tmp_path, 24, side=60)), steps)
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    for _ in range(2):
        for _images, _labels in loader:
            pass
    return loader


def get(url: str, accept: str = "text/plain") -> str:
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(answer.read().decode())


def samples(families: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels, in the labels' order."""
    found: dict[tuple[str, ...], float] = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in found, "a series came twice"
            found[key] = sample.value
    return found


def test_what_is_served_is_what_stats_says(loader: headrace.DataLoader) -> None:
    with loader.serve_metrics(name="train") as server:
        values = samples(text_string_to_metric_families(get(server.url)))
    stats = loader.stats()
    assert values["headrace_batches_total", "train"] == 12
    assert values["headrace_samples_total", "train"] == 48
    assert values["headrace_epochs_begun_total", "train"] == 2
    assert values["headrace_epoch", "train"] == 1
    assert values["headrace_startup_seconds_total", "train"] == stats.startup_seconds
    assert values["headrace_stall_seconds_sum", "train"] == stats.stall_seconds
    assert values["headrace_stall_seconds_count", "train"] == 10
    assert values["headrace_stall_seconds_bucket", "+Inf", "train"] == 10
    assert values["headrace_epoch_stall_ratio", "train"] == stats.epochs[-1].stall_share
    assert values["headrace_memory_allowed_bytes", "train"] == stats.memory_allowed
    assert values["headrace_queue_depth_batches", "train"] == 4
    assert values["headrace_queue_ready_batches", "train"] == stats.epochs[-1].queue.ready
    assert values["headrace_decoded_samples_total", "headrace", "train"] == stats.decoded_by["headrace"]
    assert values["headrace_failed_samples_total", "skipped", "train"] == 0
    for stage in stats.stages:
        assert values["headrace_stage_samples_total", "train", stage.name] == stage.samples
        assert values["headrace_stage_seconds_total", "train", stage.name] == stage.seconds
        assert values["headrace_stage_bytes_total", "train", stage.name] == stage.bytes


def test_a_dataset_of_urls_has_figures_of_its_own_and_others_none(loader: headrace.DataLoader) -> None:
    remote = RemoteStats(10**6, 120, 0.03, 40, 80, 7, 5 * 10**6, 10**7)

    class Urls:
        def stats(self) -> LoaderStats:
            return replace(loader.stats(), remote=remote)

    with MetricsServer({"far": Urls(), "near": loader}, 0) as server:
        text = get(server.url)
    values = samples(text_string_to_metric_families(text))
    assert values["headrace_remote_fetched_bytes_total", "far"] == remote.bytes_fetched
    assert values["headrace_remote_requests_total", "far"] == remote.requests
    assert values["headrace_remote_latency_seconds", "far"] == remote.latency_seconds
    assert values["headrace_cache_hits_total", "far"] == remote.cache_hits
    assert values["headrace_cache_misses_total", "far"] == remote.cache_misses
    assert values["headrace_cache_evictions_total", "far"] == remote.cache_evictions
    assert values["headrace_cache_used_bytes", "far"] == remote.cache_bytes
    assert values["headrace_cache_capacity_bytes", "far"] == remote.cache_capacity
    assert not [key for key in values if "near" in key and ("remote" in key[0] or "cache" in key[0])]


def test_names_have_help_and_type_and_units_last(loader: headrace.DataLoader) -> None:
    with loader.serve_metrics() as server:
        text = get(server.url)
        openmetrics = get(server.url, accept="application/openmetrics-text; version=1.0.0")
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("headrace_")
        assert family.type in ("counter", "gauge", "histogram")
        assert family.documentation.endswith(".")
        assert f"# HELP {family.name}" in text
        for unit in ("seconds", "bytes", "batches"):
            assert unit not in family.name or family.name.endswith(unit)
    assert len(list(parse_openmetrics(openmetrics))) > 15, "the stricter format is kept, too"


def test_several_loaders_share_a_server_and_a_scrape_may_come_at_any_time() -> None:
    train, val = (headrace.DataLoader(TensorDataset(torch.arange(n)), batch_size=2) for n in (40, 6))
    with MetricsServer({"train": train, 'v"al\\\n': val}, 0) as server:
        before = samples(text_string_to_metric_families(get(server.url)))
        assert before["headrace_batches_total", "train"] == 0
        assert ("headrace_epoch", "train") not in before, "none has begun"
        scraped: list[float] = []
        done = threading.Event()

        def scrape() -> None:
            while not done.is_set():
                values = samples(text_string_to_metric_families(get(server.url)))
                scraped.append(values["headrace_batches_total", "train"])

        thread = threading.Thread(target=scrape)
        thread.start()
        for _ in range(20):
            for _batch in train:
                pass
        for _batch in val:
            pass
        done.set()
        thread.join()
        values = samples(text_string_to_metric_families(get(server.url)))
    assert scraped == sorted(scraped)
    assert values["headrace_batches_total", "train"] == 400
    assert values["headrace_samples_total", 'v"al\\\n'] == 6


def test_only_this_machine_is_served_and_closing_frees_the_port() -> None:
    loader = headrace.DataLoader(TensorDataset(torch.arange(3)))
    server = loader.serve_metrics(0)
    assert server.url == f"http://127.0.0.1:{server.port}/metrics"
    assert server._server.socket.getsockname()[0] == "127.0.0.1"
    server.close()
    server.close()
    with pytest.raises(urllib.error.URLError):
        get(server.url)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", server.port))


@pytest.mark.parametrize("port", ["taken", 70_000, -1])
def test_a_port_that_cant_be_had_is_refused_with_the_way_out(port: int | str) -> None:
    loader = headrace.DataLoader(TensorDataset(torch.arange(3)))
    with loader.serve_metrics() as server:
        number = server.port if isinstance(port, str) else port
        with pytest.raises(headrace.ConfigError, match=rf"port \({number}\).*port=0 takes one that is free"):
            loader.serve_metrics(number)


def test_without_the_client_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    loader = headrace.DataLoader(TensorDataset(torch.arange(3)))
    with pytest.raises(headrace.ConfigError, match=r"pip install 'headrace\[metrics\]'"):
        loader.serve_metrics()
