"""timm's own dataset of image folders: read natively, with what timm puts in the place of bad files."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision.transforms import Compose

import headrace
from support.extras import integration
from support.jpegs import image_folder

timm_data = integration("timm.data")

# timm leaves it to the interpreter to close the files that it opens. As an error the warning would keep the
# failed sample alive, with the loader and other open files.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture(autouse=True)
def _files_closed_before_later_tests() -> Iterator[None]:
    """Waits for the threads of loaders that a test dropped: later tests don't ignore the warning."""
    others = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 10
    while any("headrace-sample" in thread.name for thread in set(threading.enumerate()) - others):
        gc.collect()
        assert time.monotonic() < deadline, "a loader that the test dropped is still alive"
        time.sleep(0.01)


def evaluated(root: Path, count: int, **settings: Any) -> Any:
    """timm's dataset of new images, with its transform for evaluation, which draws no random numbers."""
    transform = timm_data.create_transform(40, is_training=False)
    return timm_data.create_dataset("", str(image_folder(root, count)), transform=transform, **settings)


def assert_same_as_torch(loader: headrace.DataLoader[Any]) -> None:
    expected = torch.utils.data.DataLoader(loader.dataset, loader.batch_size)
    for batch, by_torch in zip(loader, expected, strict=True):
        assert all(torch.equal(*pair) for pair in zip(batch, by_torch, strict=True))


class Mirror:
    def __call__(self, image: Image.Image) -> Image.Image:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_timms_dataset_of_a_folder_is_read_natively(mode: str, tmp_path: Path) -> None:
    dataset = evaluated(tmp_path, 12, input_img_mode=mode)
    if mode == "L":
        dataset.transform = timm_data.create_transform(40, is_training=False, mean=(0.5,), std=(0.5,))
    loader = headrace.DataLoader(dataset, 5, num_workers=2)
    assert "plan: native" in loader.explain(), loader.explain()
    assert_same_as_torch(loader)


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_files_that_timm_replaces_are_replaced_by_the_same(
    on_error: Literal["raise", "skip", "replace"], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = evaluated(tmp_path, 12)
    dataset.target_transform = (100).__add__
    broken = [Path(dataset.reader.samples[i][0]) for i in (3, 4, 11)]
    for path in broken[:2]:
        path.write_bytes(b"not an image")
    broken[2].unlink()
    loader = headrace.DataLoader(dataset, 4, num_workers=2, on_error=on_error)
    assert_same_as_torch(loader)
    assert loader.stats().failures == ()
    caplog.clear()
    assert len(list(loader)) == 3
    assert all(str(path) in caplog.text for path in broken)


def test_labels_are_those_of_the_files_that_timm_takes(tmp_path: Path) -> None:
    dataset = evaluated(tmp_path, 12)
    change = next(i for i in range(11) if dataset.reader.samples[i][1] != dataset.reader.samples[i + 1][1])
    Path(dataset.reader.samples[change][0]).write_bytes(b"not an image")
    assert_same_as_torch(headrace.DataLoader(dataset, 4, num_workers=2))


@pytest.mark.parametrize("attempts", [1, 10])
def test_an_error_comes_where_timm_finds_no_readable_file(attempts: int, tmp_path: Path) -> None:
    dataset = evaluated(tmp_path, 30)
    dataset._max_retries = attempts
    for path, _ in dataset.reader.samples[3 : 3 + attempts]:
        Path(path).write_bytes(b"not an image")
    loader = headrace.DataLoader(dataset, 3, num_workers=2)
    batches = iter(loader)
    next(batches)
    with pytest.raises(headrace.SampleError, match=f"Failed to load {attempts} consecutive samples"):
        next(batches)


def test_an_error_of_the_target_transform_is_raised(tmp_path: Path) -> None:
    dataset = evaluated(tmp_path, 4)

    def failing(label: int) -> int:
        raise KeyError(f"label {label}") from OSError()

    dataset.target_transform = failing
    loader = headrace.DataLoader(dataset, 4, num_workers=2)
    assert "plan: native" in loader.explain()
    with pytest.raises(KeyError, match="label 0"):
        list(loader)


def use_own_reader(dataset: Any) -> None:
    dataset.reader = type("Own", (type(dataset.reader),), {})(dataset.reader.root)


CHANGES: dict[str, Callable[[Any], object]] = {
    "reader": use_own_reader,
    "bytes": lambda dataset: setattr(dataset, "load_bytes", True),
    "mode": lambda dataset: setattr(dataset, "input_img_mode", "CMYK"),
    "features": lambda dataset: setattr(dataset, "additional_features", []),
    "transform": lambda dataset: setattr(dataset, "transform", Compose([dataset.transform, Mirror()])),
    "whole batches": lambda dataset: setattr(
        dataset, "__getitems__", lambda indices: [dataset[0]] * len(indices)
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_timms_dataset_runs_as_written_where_not_all_of_it_is_known(name: str, tmp_path: Path) -> None:
    dataset = evaluated(tmp_path, 4)
    CHANGES[name](dataset)
    assert "plan: python" in headrace.DataLoader(dataset, 2).explain()


def test_parts_of_timms_dataset_run_as_written(tmp_path: Path) -> None:
    dataset = evaluated(tmp_path, 6)
    Path(dataset.reader.samples[2][0]).write_bytes(b"not an image")
    for part in (Subset(dataset, [1, 2]), dataset + dataset):
        loader = headrace.DataLoader(part, 2)
        assert "plan: python" in loader.explain()
        assert_same_as_torch(loader)


@pytest.mark.filterwarnings("error:worker_init_fn")
def test_timms_seeding_of_workers_is_not_missed_where_there_are_none(tmp_path: Path) -> None:
    timms = timm_data.create_loader(evaluated(tmp_path, 4), 40, 2, num_workers=1, use_prefetcher=False)
    loader = headrace.DataLoader(timms.dataset, 2, num_workers=1, worker_init_fn=timms.worker_init_fn)
    assert "plan: native" in loader.explain()
    assert_same_as_torch(loader)
    own_seeds = timm_data.create_loader(
        timms.dataset, 40, 2, num_workers=1, use_prefetcher=False, worker_seeding=lambda info: info.seed
    )
    for init in (print, own_seeds.worker_init_fn):
        with pytest.warns(UserWarning, match="worker_init_fn is not called"):
            next(iter(headrace.DataLoader(timms.dataset, 2, num_workers=1, worker_init_fn=init)))


@pytest.mark.parametrize("target", [None, float])
def test_uint8_batches_of_timms_fast_collate(target: Callable[[int], float] | None, tmp_path: Path) -> None:
    transform = timm_data.create_transform(40, is_training=False, use_prefetcher=True)
    folder = str(image_folder(tmp_path, 12))
    dataset = timm_data.create_dataset("", folder, transform=transform, target_transform=target)
    options: dict[str, Any] = {"batch_size": 5, "collate_fn": timm_data.loader.fast_collate}
    loader = headrace.DataLoader(dataset, num_workers=2, **options)
    for (images, labels), (expected, targets) in zip(
        loader, torch.utils.data.DataLoader(dataset, **options), strict=True
    ):
        assert images.stride() == expected.stride()
        assert labels.dtype == targets.dtype
        assert torch.equal(images, expected)
        assert torch.equal(labels, targets)
    assert ("batch: uint8 [N, 3, 40, 40] NCHW" in loader.explain()) == (target is None)
