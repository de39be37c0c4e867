"""torchvision's own datasets of image files: with deferred images the batches are those that torch gives."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.datasets import celeba, flowers102
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)

import headrace
from support.equal import same
from support.jpegs import jpeg

SAMPLES = 6  # of each dataset
CROP = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip()])
END = v1.Compose([v1.ToTensor(), v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])


def augment(image: Image.Image) -> tuple[torch.Tensor, str]:
    """A tensor, and the name of the class of the cropped image."""
    cropped = CROP(image)
    return END(cropped), type(cropped).__name__


def flip_both(image: Image.Image, mask: Image.Image) -> tuple[tuple[torch.Tensor, str], torch.Tensor]:
    """A segmentation transform: what is drawn once is done to image and mask."""
    if torch.rand(1) < 0.5:
        image, mask = F.hflip(image), F.hflip(mask)
    mask = F.resize(mask, [20, 20], F.InterpolationMode.NEAREST)
    image = F.resize(image, [20, 20])
    return (END(image), type(image).__name__), torch.from_numpy(np.array(mask))


def write_jpegs(folder: Path, names: list[str]) -> None:
    rng = np.random.default_rng(len(names[0]))
    for i, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(rng, "4:2:0", 60 + i, 70 - 3 * i))


def write_masks(folder: Path, names: list[str]) -> None:
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        image = Image.fromarray(rng.integers(0, 21, (70 - 3 * i, 60 + i), np.uint8), "P")
        image.putpalette(rng.integers(0, 256, 3 * 21, np.uint8).tobytes())
        image.save(folder / name)


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def make_celeba(root: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset[Any]:
    monkeypatch.setattr(celeba, "check_integrity", lambda *_: True)  # of the lists' checksums
    names, base = [f"{i:06}.jpg" for i in range(SAMPLES)], root / "celeba"
    write_jpegs(base / "img_align_celeba", names)
    for file, columns in {"list_bbox": 4, "list_landmarks_align": 10, "list_attr": 40}.items():
        header = [str(SAMPLES), " ".join(f"c{i}" for i in range(columns))]
        rows = [" ".join([name, *["1", "-1"] * (columns // 2)]) for name in names]
        write_lines(base / f"{file}_celeba.txt", header + rows)
    write_lines(base / "list_eval_partition.txt", [f"{name} 0" for name in names])
    write_lines(base / "identity_CelebA.txt", [f"{name} {i}" for i, name in enumerate(names)])
    return datasets.CelebA(str(root), target_type=["attr", "identity"], transform=augment)


def make_food101(root: Path, _: pytest.MonkeyPatch) -> Dataset[Any]:
    names = {dish: [f"{dish}/{i}" for i in range(SAMPLES // 2)] for dish in ("apple_pie", "waffles")}
    for each in names.values():
        write_jpegs(root / "food-101" / "images", [f"{name}.jpg" for name in each])
    write_lines(root / "food-101" / "meta" / "train.json", [json.dumps(names)])
    return datasets.Food101(root, transform=augment)


def make_flowers102(root: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset[Any]:
    from scipy.io import savemat

    monkeypatch.setattr(flowers102, "check_integrity", lambda *_: True)
    base, numbers = root / "flowers-102", list(range(1, SAMPLES + 1))
    write_jpegs(base / "jpg", [f"image_{number:05}.jpg" for number in numbers])
    savemat(base / "setid.mat", dict.fromkeys(("trnid", "valid", "tstid"), numbers))
    savemat(base / "imagelabels.mat", {"labels": [1 + number % 3 for number in numbers]})
    return datasets.Flowers102(root, transform=augment)


def make_pets(root: Path, _: pytest.MonkeyPatch) -> Dataset[Any]:
    base, names = root / "oxford-iiit-pet", [f"Abyssinian_{i}" for i in range(SAMPLES)]
    write_jpegs(base / "images", [f"{name}.jpg" for name in names])
    write_masks(base / "annotations" / "trimaps", [f"{name}.png" for name in names])
    write_lines(base / "annotations" / "trainval.txt", [f"{name} 1 1 1" for name in names])
    return datasets.OxfordIIITPet(root, target_types="segmentation", transforms=flip_both)


def make_dtd(root: Path, _: pytest.MonkeyPatch) -> Dataset[Any]:
    names = [f"{kind}/{kind}_{i}.jpg" for kind in ("banded", "woven") for i in range(SAMPLES // 2)]
    write_jpegs(root / "dtd" / "dtd" / "images", names)
    write_lines(root / "dtd" / "dtd" / "labels" / "train1.txt", names)
    return datasets.DTD(root, transform=augment)


def make_eurosat(root: Path, _: pytest.MonkeyPatch) -> Dataset[Any]:
    names = [f"{kind}/{i}.jpg" for kind in ("Forest", "River") for i in range(SAMPLES // 2)]
    write_jpegs(root / "eurosat" / "2750", names)
    return datasets.EuroSAT(root, transform=augment)


MAKERS: dict[str, Callable[[Path, pytest.MonkeyPatch], Dataset[Any]]] = {
    "CelebA": make_celeba,
    "Food101": make_food101,
    "OxfordIIITPet": make_pets,
    "DTD": make_dtd,
    "EuroSAT": make_eurosat,
}
if importlib.util.find_spec("scipy") is not None:
    MAKERS["Flowers102"] = make_flowers102


@pytest.fixture(scope="module")
def by_loader(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """One batch of each dataset, by the loader that made it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = [make(tmp_path_factory.mktemp(name), monkeypatch) for name, make in MAKERS.items()]

    def batches(loader: type[DataLoader[Any]], **options: Any) -> list[Any]:
        torch.manual_seed(5)
        return list(loader(ConcatDataset(made), SAMPLES, num_workers=1, **options))

    return {
        "torch": batches(DataLoader),
        "lazy": batches(headrace.DataLoader),
        "not lazy": batches(headrace.DataLoader, deferred=False),
    }


@pytest.mark.parametrize("name", MAKERS)
def test_a_dataset_of_torchvision_gives_the_same_batches(name: str, by_loader: dict[str, list[Any]]) -> None:
    place = list(MAKERS).index(name)
    (wanted, _), target = by_loader["torch"][place]
    (ours, kinds), our_target = by_loader["lazy"][place]
    assert set(kinds) == {"Image"}
    assert same([ours, our_target], [wanted, target])
    assert same(by_loader["not lazy"][place], by_loader["torch"][place])
