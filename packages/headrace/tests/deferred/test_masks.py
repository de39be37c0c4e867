"""Masks of segmentation: numbers of palette entries and gray levels, moved natively and never mixed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F  # noqa: N812

import headrace
import headrace.deferred
from headrace._native.decoders import native_formats
from support.deferred_images import both, comparable, is_deferred, outcome
from support.jpegs import jpeg
from support.pngs import GRAY, PALETTE, png

pytestmark = pytest.mark.skipif("PNG" not in native_formats(), reason="built without libdeflate")

FLIP, TURN = Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM
MOVES: list[Callable[[Any], Any]] = [
    lambda image: image.resize((31, 23), Image.Resampling.NEAREST),
    lambda image: image.resize((80, 90)),  # for a palette NEAREST, whatever is said
    lambda image: image.crop((5, 3, 30, 20)),
    lambda image: image.transpose(FLIP),
    lambda image: image.crop((5, 3, 30, 20)).resize((16, 40), Image.Resampling.NEAREST).transpose(TURN),
    lambda image: image.resize((31, 23), Image.Resampling.BILINEAR).crop((1, 2, 20, 21)).transpose(FLIP),
    lambda image: image.copy().transpose(FLIP).crop((0, 0, 9, 9)),
]
# What palettes don't let native code do: Pillow does it to pixels.
OTHER: list[Callable[[Any], Any]] = [
    lambda image: image.crop((5, 3, 30, 20)).convert("RGB"),
    lambda image: image.transpose(FLIP).convert("L"),
    lambda image: image.resize((31, 23)).resize((9, 8)),
    lambda image: image.crop((-2, -2, 30, 20)),
    lambda image: image.transpose(Image.Transpose.ROTATE_90).rotate(10),
    lambda image: image.crop((5, 3, 30, 20)).point(lambda level: level // 2),
    lambda image: image.crop((5, 3, 30, 20)).remap_palette(range(256)),
    lambda image: pickle.loads(pickle.dumps(image.crop((5, 3, 30, 20)))),
    lambda image: image.crop((5, 3, 30, 20)).quantize(4),
]


def files() -> list[bytes]:
    rng = np.random.default_rng(0)
    found = [png(rng, 41, 37, bits, PALETTE) for bits in (1, 2, 4, 8)]
    found += [png(rng, 41, 37, 8, PALETTE, entries=21), png(rng, 41, 37, 2, PALETTE, entries=1)]
    found.append(png(rng, 41, 37, 8, PALETTE, before=[(b"tRNS", b"\xff\0\xff")]))
    found.append(png(rng, 41, 37, 8, PALETTE, before=[(b"tRNS", b"\x80\0\xff")]))
    return found


@pytest.mark.parametrize("number", range(len(files())))
def test_moved_palette_images_are_pillows(number: int) -> None:
    data = files()[number]
    for move in MOVES:
        ours, theirs = (move(image) for image in both(data))
        assert is_deferred(ours) or number == 7
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))
        assert comparable(ours) == comparable(theirs)
        assert ours == theirs


@pytest.mark.parametrize("number", range(len(files()) - 1))
def test_whatever_else_is_done_to_them_is_done_by_pillow(number: int) -> None:
    data = files()[number]
    for step in OTHER:
        ours, theirs = both(data)
        assert outcome(lambda: step(ours)) == outcome(lambda: step(theirs))  # noqa: B023


def test_a_palette_that_was_looked_at_first_stays(tmp_path: Path) -> None:
    for data in files()[:6]:
        ours, theirs = both(data)
        assert ours.getpalette() == theirs.getpalette()
        ours, theirs = ours.crop((1, 2, 30, 31)), theirs.crop((1, 2, 30, 31))
        assert ours.getpalette() == theirs.getpalette()
        ours.save(tmp_path / "ours.png")
        theirs.save(tmp_path / "theirs.png")
        assert (tmp_path / "ours.png").read_bytes() == (tmp_path / "theirs.png").read_bytes()


class Pairs(Dataset[Any]):
    """Images and masks in two folders, joined by user code."""

    def __init__(self, root: Path, *, by_v2: bool) -> None:
        self.root, self.by_v2 = root, by_v2
        self.joint = v2.Compose(
            [
                v2.RandomResizedCrop(24, antialias=True, interpolation=InterpolationMode.BILINEAR),
                v2.RandomHorizontalFlip(),
            ]
        )

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.root / f"{index}.jpg").convert("RGB")
        mask: Any = Image.open(self.root / f"{index}.png")
        if self.by_v2:
            image, mask = self.joint(tv_tensors.Image(image), tv_tensors.Mask(mask))
            return image, mask
        box = [index, 2, 30, 28]
        image = F.resize(F.crop(image, *box), [24, 20])
        mask = F.resize(F.crop(mask, *box), [24, 20], InterpolationMode.NEAREST)
        if index % 2:
            image, mask = F.hflip(image), F.hflip(mask)
        as_tensor = F.pil_to_tensor(mask).squeeze(0) if index % 3 else torch.as_tensor(np.array(mask))
        return F.to_tensor(image), as_tensor.long()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("pairs"), np.random.default_rng(1)
    for number in range(12):
        (root / f"{number}.jpg").write_bytes(jpeg(rng, "4:2:0", 60, 50))
        kind = (8, PALETTE) if number % 2 else (8, GRAY)
        (root / f"{number}.png").write_bytes(png(rng, 60, 50, *kind))
    return root


@pytest.mark.parametrize("by_v2", [False, True])
@pytest.mark.parametrize("deferred", [False, True])
def test_batches_of_images_and_masks_equal_torchs(pairs: Path, *, by_v2: bool, deferred: bool) -> None:
    dataset = Pairs(pairs, by_v2=by_v2)
    torch.manual_seed(3)
    expected = list(TorchDataLoader(dataset, 4, num_workers=1))
    torch.manual_seed(3)
    found = list(headrace.DataLoader(dataset, 4, num_workers=1, deferred=deferred))
    for ours, theirs in zip(found, expected, strict=True):
        assert all(map(torch.equal, ours, theirs))
        assert ours[1].shape[0] == 4
