"""Datasets that read with OpenCV and augment with albumentations: torch's batches, bit for bit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data

pytest.importorskip("cv2", reason="OpenCV isn't installed")
pytest.importorskip("albumentations", reason="albumentations isn't installed")

import headrace
from support.equal import same
from support.jpegs import jpeg

COUNT = 24
NAMES = ("crop", "resize and jitter", "one of blurs", "shifts", "letterbox")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    folder = tmp_path_factory.mktemp("files")
    images, masks = [], []
    for i in range(COUNT):
        rng = np.random.default_rng(i)
        width, height = map(int, rng.integers(70, 160, 2))
        images.append(folder / f"{i}.jpg")
        images[-1].write_bytes(jpeg(rng, "4:2:0", width, height))
        mask = io.BytesIO()
        Image.fromarray(rng.integers(0, 21, (height, width), dtype=np.uint8)).save(mask, "PNG")
        masks.append(folder / f"{i}.png")
        masks[-1].write_bytes(mask.getvalue())
    return images, masks


def batches(kind: Any, dataset: Any, **arguments: Any) -> Any:
    torch.manual_seed(0)
    return list(kind(dataset, batch_size=4, num_workers=2, **arguments))


@pytest.mark.parametrize("pairs", [False, True], ids=["images", "pairs"])
@pytest.mark.parametrize("pipeline", NAMES)
def test_batches_are_those_of_torchs_loader(files: Any, pipeline: str, pairs: bool) -> None:
    from support.opencv_datasets import Augmented

    dataset = Augmented(files[0], pipeline, files[1] if pairs else ())
    ours, theirs = (batches(kind, dataset) for kind in (headrace.DataLoader, data.DataLoader))
    assert same(ours, theirs)


def test_explain_says_what_runs_natively(files: Any) -> None:
    from support.opencv_datasets import Augmented

    loader = headrace.DataLoader(Augmented(files[0], "crop"), batch_size=4, num_workers=2)
    list(loader)
    text = str(loader.explain())
    assert "native code decodes them" in text or "native code decodes and transforms them" in text
    assert "gives other values" not in text


def test_arrays_may_be_changed_kept_and_written(files: Any, tmp_path: Path) -> None:
    from support.opencv_datasets import Careless

    dataset = Careless(files[0], tmp_path)
    ours, theirs = (batches(kind, dataset) for kind in (headrace.DataLoader, data.DataLoader))
    assert same(ours, theirs)
