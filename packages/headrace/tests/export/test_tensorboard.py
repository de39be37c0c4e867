"""What TensorBoard reads back from its own event file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import headrace
from headrace.build import StreamBuilder
from headrace.engine.meter import Meter
from headrace.export import to_tensorboard

# Its own imports use what NumPy and setuptools are about to drop.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def read_back(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_the_latest_epochs_figures_come_back_from_the_file(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    loader = headrace.DataLoader(TensorDataset(torch.arange(40)), batch_size=4)
    writer = SummaryWriter(str(tmp_path))
    to_tensorboard(loader.stats(), writer, 0)
    rates = []
    for step in (10, 20):
        for _batch in loader:
            pass
        to_tensorboard(loader.stats(), writer, step, tag="headrace/train")
        rates.append((step, loader.stats().epochs[-1].samples_per_second))
    writer.close()
    scalars = read_back(tmp_path)
    assert all(tag.startswith("headrace/train/") for tag in scalars), "nothing before the first epoch"
    assert scalars["headrace/train/samples_per_second"] == [(s, pytest.approx(r)) for s, r in rates]
    assert [step for step, _ in scalars["headrace/train/stall_share"]] == [10, 20]
    assert scalars["headrace/train/memory_allowed_bytes"][0][1] > 0
    assert "headrace/train/queue_ready" not in scalars, "rows are gathered when they are asked for"


def test_stages_and_the_queue_are_written_where_there_are_any() -> None:
    class Writer:
        def __init__(self) -> None:
            self.scalars: dict[str, float] = {}

        def add_scalar(self, tag: str, scalar_value: float, global_step: int | None) -> None:
            assert global_step == 3
            self.scalars[tag] = scalar_value

    builder, writer = StreamBuilder(), Writer()
    meter: Meter = builder.meter
    epoch = meter.begin_epoch(0)
    epoch.received(samples=8, asked=0.0, in_flight=2, ready=1, depth=2)
    epoch.received(samples=8, asked=0.0, in_flight=2, ready=2, depth=2)
    meter.add("transfer", 16, 0.5, nbytes=1000)
    meter.add("python", 16, 2.0, threads=4)
    to_tensorboard(replace(builder.stats(100), memory_used=7), writer, 3)
    assert writer.scalars["headrace/queue_ready"] == 1.5
    assert writer.scalars["headrace/supply/transfer_bytes_per_second"] == 2000
    assert writer.scalars["headrace/supply/python_samples_per_second"] == 32
    assert "headrace/supply/python_bytes_per_second" not in writer.scalars
    assert writer.scalars["headrace/memory_used_bytes"] == 7
