"""Transforms that draw with fewer calls of torch draw what they draw as they are written."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms import v2

from headrace import lazy
from headrace.lazy import quick, recording
from support.equal import same
from support.jpegs import jpeg

SIZES = [(60, 40), (200, 8), (8, 200), (24, 24)]
FILES = [jpeg(np.random.default_rng(n), "4:2:0", *size) for n, size in enumerate(SIZES)]
JITTER = {"brightness": 0.4, "contrast": (0.5, 1.5), "saturation": 0, "hue": 0.1}


@pytest.fixture(autouse=True)
def recorded() -> Iterator[None]:
    lazy.install()
    recording.start()
    yield
    lazy.uninstall()
    recording.stop()


def opened(file: int, mode: str = "RGB") -> Image.Image:
    return Image.open(io.BytesIO(FILES[file])).convert(mode)


def outcome(action: Callable[[Any], Any], seed: int, mode: str = "RGB") -> Any:
    """What is made of an image or raised, and the next random number."""
    torch.manual_seed(seed)
    try:
        made = action(opened(seed % len(FILES), mode))
        made = torch.from_numpy(np.array(made)) if isinstance(made, Image.Image) else made
    except Exception as error:
        made = (type(error), str(error))
    return made, torch.rand(1, dtype=torch.float64)


def as_written(transform: Any) -> Callable[[Any], Any]:
    return lambda image: nn.Module.__call__(transform, image)


def _changed(transform: Any, **settings: Any) -> Any:
    vars(transform).update(settings)
    return transform


EXAMPLES: dict[str, Any] = {
    "crop": v1.RandomResizedCrop(16),
    "crop of other shapes": v1.RandomResizedCrop((9, 13), (0.2, 1), (0.1, 0.2), v1.InterpolationMode.BICUBIC),
    "crop of wide shapes": v1.RandomResizedCrop(16, (0.9, 1.0), [3.0, 5.0]),
    "crop, ratios of whole numbers": v1.RandomResizedCrop(16, ratio=(1, 2)),
    "crop, integers for a filter": v1.RandomResizedCrop(16, interpolation=3),  # type: ignore[arg-type]
    "crop, reversed ratios": _changed(v1.RandomResizedCrop(16), ratio=(1.5, 0.5)),
    "crop, a ratio of 0": v1.RandomResizedCrop(16, ratio=(0.0, 1.0)),
    "crop without antialias": v1.RandomResizedCrop(16, antialias=False),
    "crop, v2": v2.RandomResizedCrop(16, (0.2, 1.0)),
    "crop, v2, shapes": v2.RandomResizedCrop((9, 13), ratio=(3.0, 5.0)),
    "crop, v2, ratios of whole numbers": v2.RandomResizedCrop(16, ratio=(1, 2)),
    "horizontal flip": v1.RandomHorizontalFlip(),
    "horizontal flip, p 0.3": v1.RandomHorizontalFlip(0.3),
    "never": v1.RandomHorizontalFlip(0),
    "always": v1.RandomVerticalFlip(1),
    "vertical flip": v1.RandomVerticalFlip(),
    "a probability beyond 1": v1.RandomVerticalFlip(1e300),
    "a probability of another kind": v1.RandomHorizontalFlip(torch.tensor(0.5)),
    "horizontal flip, v2": v2.RandomHorizontalFlip(0.7),
    "vertical flip, v2": v2.RandomVerticalFlip(),
    "gray": v1.RandomGrayscale(0.5),
    "one of several": v1.RandomApply([v1.RandomVerticalFlip(), v1.ColorJitter(0.4)], 0.6),
    "a module list": v1.RandomApply(nn.ModuleList([v1.RandomVerticalFlip()])),
    "colors": v1.ColorJitter(**JITTER),
    "hue alone": v1.ColorJitter(hue=0.5),
    "no colors": v1.ColorJitter(),
    "colors, v2": v2.ColorJitter(**JITTER),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_images_and_random_numbers_are_those_of_the_transform_as_written(name: str) -> None:
    transform = EXAMPLES[name]
    assert type(transform) in quick.QUICK
    for seed in range(24):
        mode = "L" if seed % 5 == 4 else "RGB"
        assert same(outcome(transform, seed, mode), outcome(as_written(transform), seed, mode)), seed


def test_every_transform_has_an_example() -> None:
    assert {type(transform) for transform in EXAMPLES.values()} == set(quick.QUICK)


@pytest.mark.parametrize("cls", [v1.RandomHorizontalFlip, v2.RandomHorizontalFlip, v1.RandomGrayscale])
def test_probabilities_are_compared_in_the_precision_of_torch(cls: Any) -> None:
    torch.manual_seed(3)
    drawn = torch.rand(1).item()
    for p in (math.nextafter(drawn, 0), drawn, math.nextafter(drawn, 1), drawn + 2**-24):
        assert same(outcome(cls(p), 3), outcome(as_written(cls(p)), 3)), p


def test_numbers_of_another_default_dtype_are_drawn_as_written() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        for transform in (v1.RandomResizedCrop(16), v1.RandomHorizontalFlip(), v1.ColorJitter(0.4)):
            assert same(outcome(transform, 1), outcome(as_written(transform), 1))
    finally:
        torch.set_default_dtype(torch.float32)


class OwnCrop(v1.RandomResizedCrop):
    @staticmethod
    def get_params(img: Any, scale: Any, ratio: Any) -> tuple[int, int, int, int]:  # noqa: ARG004
        return 1, 2, 20, 10


def test_what_users_change_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert same(outcome(OwnCrop(8), 0)[0], outcome(lambda x: F.resized_crop(x, 1, 2, 20, 10, [8, 8]), 0)[0])
    replaced: Any = v1.RandomHorizontalFlip()
    replaced.forward = lambda _: "replaced"
    assert replaced(opened(0)) == "replaced"
    hooked = v1.RandomVerticalFlip()
    hooked.register_forward_hook(lambda *_: "hooked")
    assert hooked(opened(0)) == "hooked"
    monkeypatch.setattr(F, "hflip", lambda _: "patched")
    assert v1.RandomHorizontalFlip(1.0)(opened(0)) == "patched"
    monkeypatch.setattr(v1.RandomGrayscale, "forward", lambda *_: "another forward")
    assert v1.RandomGrayscale()(opened(0)) == "another forward"


def test_other_inputs_take_the_way_as_written() -> None:
    levels = torch.arange(48, dtype=torch.uint8).view(3, 4, 4)
    torch.manual_seed(0)
    flipped = v1.RandomHorizontalFlip(1.0)(levels)
    assert torch.equal(flipped, levels.flip(2))
    ordinary = Image.new("RGB", (30, 20))
    assert type(v1.RandomResizedCrop(8)(ordinary)) is Image.Image


def test_transforms_are_restored_when_recording_stops() -> None:
    recording.stop()
    assert all("__call__" not in vars(cls) for cls in quick.QUICK)
