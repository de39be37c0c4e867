"""The other rows of `floor.py`: public functions, datasets and orders, against what they replace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.io
from PIL import Image
from torch.utils.data import RandomSampler, SequentialSampler, WeightedRandomSampler
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import headrace
import headrace.order
from floor_rows import Numbers

FILES = 40
SAMPLES = 1_000_000
STEPS = v1.Compose([v1.Resize(224), v1.CenterCrop(224), v1.ToTensor()])

Function = Callable[[Any], Any]
Made = tuple[Function, Function, list[Any]]


@dataclass(frozen=True)
class Call:
    """A function, and what it replaces.

    Attributes:
        name: what the table shows.
        make: Headrace's function, the other, and what both are called with, one after the other; it may keep
            files in the folder that it is given.
        same: whether they give the same; random orders don't.
        needs: package that the row imports besides torchvision.
    """

    name: str
    make: Callable[[Path], Made]
    same: bool = True
    needs: str | None = None


def jpegs(folder: Path, suffix: str = "jpg") -> list[Path]:
    """Files of 500 × 375, of some 60 kB as JPEGs, in two classes."""
    rng = np.random.default_rng(0)
    paths = []
    for i in range(FILES):
        pixels = rng.integers(0, 255, (94, 125, 3), np.uint8)
        path = folder / "images" / f"class-{i % 2}" / f"{i:02}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
        paths.append(path)
    return paths


def decoded(folder: Path, *, mode: str = "RGB", suffix: str = "jpg", as_tensor: bool = True) -> Made:
    inputs: list[Any] = [str(path) for path in jpegs(folder, suffix)]
    if as_tensor:
        inputs = [torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8) for path in inputs]
    functions = headrace.decode_image, torchvision.io.decode_image
    return *(partial(function, mode=mode) for function in functions), inputs


def sizes(folder: Path) -> Made:
    paths = [str(path) for path in jpegs(folder)]
    ours = partial(headrace.image_sizes, cache=False)
    return lambda paths: ours(paths).tolist(), lambda paths: [[*Image.open(p).size] for p in paths], [paths]


def samples_of_files(transform: Any, folder: Path) -> Made:
    jpegs(folder)
    theirs = ImageFolder(folder / "images", transform)
    paths, labels = zip(*theirs.samples, strict=True)
    ours = headrace.ImageDataset(paths, labels, transform)
    return ours.__getitem__, theirs.__getitem__, [*range(FILES)]


def samples_of_pack(folder: Path) -> Made:
    jpegs(folder)
    theirs = ImageFolder(folder / "images", STEPS)
    headrace.pack(folder / "images", folder / "pack")
    return headrace.PackedDataset(folder / "pack", STEPS).__getitem__, theirs.__getitem__, [*range(FILES)]


def order(ours: Iterable[int], theirs: Iterable[int]) -> Made:
    return lambda _: list(ours), lambda _: list(theirs), [None]


def sequential(_: Path) -> Made:
    return order(headrace.order.Sequential(SAMPLES), SequentialSampler(range(SAMPLES)))


def shuffled(_: Path) -> Made:
    return order(headrace.order.Shuffled(SAMPLES), RandomSampler(range(SAMPLES)))


def weighted(_: Path) -> Made:
    weights = torch.rand(SAMPLES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return order(headrace.order.Weighted(weights), WeightedRandomSampler(weights, SAMPLES))


def short_epochs(_folder: Path, *, new_loaders: bool, batches: int, shuffle: bool = False) -> Made:
    """The first `batches` of three of numbers in the calling thread, by one loader or by new ones."""
    makes = [
        partial(kind, Numbers(96), batch_size=32, shuffle=shuffle, num_workers=0)
        for kind in (headrace.DataLoader, torch.utils.data.DataLoader)
    ]
    kept = [make() for make in makes]

    def begin(which: int, _: int) -> Any:
        for number, batch in enumerate(makes[which]() if new_loaders else kept[which], start=1):
            if number == batches:
                return batch
        return None

    return partial(begin, 0), partial(begin, 1), list(range(200))


CALLS = (
    Call("decode_image of a tensor", decoded),
    Call("decode_image of a path", partial(decoded, as_tensor=False)),
    Call("decode_image of a tensor, unchanged", partial(decoded, mode="UNCHANGED")),
    Call("decode_image of a PNG", partial(decoded, suffix="png")),
    Call("image_sizes", sizes),
    Call("ImageDataset, image by image", partial(samples_of_files, None)),
    Call("ImageDataset, resized, as tensors", partial(samples_of_files, STEPS)),
    Call("PackedDataset, resized, as tensors", samples_of_pack, needs="pyarrow"),
    Call("order.Sequential", sequential),
    Call("order.Shuffled", shuffled, same=False),
    Call("order.Weighted", weighted, same=False),
    *(
        Call(f"{what} of numbers{loaders}", partial(short_epochs, new_loaders=new, batches=batches))
        for what, batches in (("first of 3 batches", 1), ("epochs of 3 batches", 4))
        for loaders, new in (("", False), (", new loaders", True))
    ),
    Call(
        "epochs of 3 batches of shuffled numbers",
        partial(short_epochs, new_loaders=False, batches=4, shuffle=True),
        same=False,
    ),
)
