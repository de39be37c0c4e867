"""Ultralytics' training set in worker processes: images and labels of torch's loader, bit for bit."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data

import headrace
from headrace._native import deferred as memory
from support.equal import same
from support.extras import integration
from support.jpegs import jpeg

COUNT = 8
STRONG = {"degrees": 15.0, "shear": 5.0, "perspective": 5e-4, "flipud": 0.5, "mixup": 0.3, "hsv_h": 0.1}


@pytest.fixture(scope="module", autouse=True)
def _imported() -> Iterator[None]:
    """When it is imported, Ultralytics puts functions of its own in the place of others'. Other tests of this
    process must not see them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Image, "open", Image.open)
        patch.setattr(torch, "save", torch.save)
        integration("ultralytics")
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("yolo")
    for name in ("images", "labels"):
        (root / name).mkdir()
    for number in range(COUNT):
        rng = np.random.default_rng(number)
        width, height = map(int, rng.integers(60, 150, 2))
        (root / "images" / f"{number}.jpg").write_bytes(jpeg(rng, "4:2:0", width, height))
        boxes = [f"{i} {0.3 + 0.2 * i} 0.5 0.4 {0.3 + 0.1 * i}\n" for i in range(2)]
        (root / "labels" / f"{number}.txt").write_text("".join(boxes), encoding="utf-8")
    return root / "images"


def training_set(folder: Path, **settings: Any) -> Any:
    cfg = importlib.import_module("ultralytics.cfg")
    dataset = importlib.import_module("ultralytics.data.dataset")
    described = {"names": {0: "a", 1: "b"}, "nc": 2, "channels": 3}
    hyp = cfg.get_cfg(overrides={"task": "detect", **settings})
    return dataset.YOLODataset(
        str(folder), data=described, task="detect", imgsz=96, augment=True, hyp=hyp, cache=False
    )


def batches(kind: Any, dataset: Any) -> list[Any]:
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    return list(kind(dataset, batch_size=4, num_workers=1, collate_fn=dataset.collate_fn))


@pytest.mark.parametrize("mosaic", [1.0, 0.0], ids=["mosaic", "letterbox"])
@pytest.mark.parametrize("settings", [{}, STRONG], ids=["as it is", "strong"])
def test_batches_are_those_of_torchs_loader(folder: Path, mosaic: float, settings: dict[str, Any]) -> None:
    ours, theirs = (
        batches(kind, training_set(folder, mosaic=mosaic, **settings))
        for kind in (headrace.DataLoader, data.DataLoader)
    )
    assert same(ours, theirs)


@pytest.fixture
def recording() -> Iterator[None]:
    opencv = importlib.import_module("headrace.deferred.opencv")
    opencv.start()
    yield
    opencv.stop()


@pytest.mark.usefixtures("recording")
def test_images_stay_late_until_they_are_put_on_a_canvas(folder: Path) -> None:
    augment = importlib.import_module("ultralytics.data.augment")
    image, original, shape = training_set(folder).load_image(0)
    assert max(shape) == 96 != max(original)
    letterboxed = augment.LetterBox((96, 128), scaleup=False)(image=image)
    assert letterboxed.shape == (96, 128, 3)
    assert memory.state(letterboxed.ctypes.data) == memory.UNTOUCHED
