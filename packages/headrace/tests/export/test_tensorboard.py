"""What TensorBoard reads back from its own event file."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Resize, ToTensor

import headrace
from headrace.export import to_tensorboard
from support.jpegs import image_folder

# Its own imports use what NumPy and setuptools are about to drop.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def read_back(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_the_latest_epochs_figures_come_back_from_the_file(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    dataset = ImageFolder(str(image_folder(tmp_path / "images", 12)), Compose([Resize((8, 8)), ToTensor()]))
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=1)
    writer = SummaryWriter(str(tmp_path / "events"))
    to_tensorboard(loader.stats(), writer, 0)
    rates = []
    for step in (10, 20):
        for _batch in loader:
            pass
        to_tensorboard(loader.stats(), writer, step, tag="headrace/train")
        rates.append((step, loader.stats().epochs[-1].samples_per_second))
    writer.close()
    scalars = read_back(tmp_path / "events")
    assert all(tag.startswith("headrace/train/") for tag in scalars), "nothing before the first epoch"
    assert scalars["headrace/train/samples_per_second"] == [(s, pytest.approx(r)) for s, r in rates]
    assert [step for step, _ in scalars["headrace/train/stall_share"]] == [10, 20]
    assert scalars["headrace/train/memory_allowed_bytes"][0][1] > 0
    assert scalars["headrace/train/supply/decode_samples_per_second"][1][1] > 0
    assert scalars["headrace/train/supply/read_bytes_per_second"][1][1] > 0
    assert 0 <= scalars["headrace/train/queue_ready"][1][1] <= 4
