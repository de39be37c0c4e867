"""Resize, to a size or of the shorter edge, and RandomResizedCrop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F  # noqa: N812  (torchvision's own name for it)

from headrace.records import Draw
from headrace.transforms.on_tensors import check_result, tensor_filter_of
from headrace.transforms.op import (
    MAX_SIZE,
    UNKNOWN,
    Arithmetic,
    Extent,
    ImageOp,
    NoNativeForm,
    Parity,
    Settled,
    SizedOp,
)
from headrace.transforms.reading import (
    bounds,
    check_size,
    filter_of,
    filter_text,
    integer,
    mode_of,
    pair,
    range_text,
)

TENSOR_RESIZE = "resizes a tensor other than uint8 RGB, and not natively; put it before the conversion"


class _Resizing(ImageOp):
    parity: ClassVar[Parity] = "pillow"
    tensor_problem = TENSOR_RESIZE

    def settle(self, before: Extent, *, on_tensor: bool) -> Settled:
        after = self.extent(before)
        if after.height == 0 or after.width == 0:
            return Settled(self, UNKNOWN, problem="leaves nothing of the shorter edge")
        if after.exact and after == before:
            return Settled(None, after)
        return super().settle(before, on_tensor=on_tensor)


@dataclass(frozen=True)
class Resize(_Resizing, SizedOp):
    """The whole input, resized to exactly height × width."""

    filter: int

    native = "resize"
    matches = (v1.Resize, v2.Resize)
    examples = (
        {"size": (24, 30)},
        {"size": (24, 30), "antialias": None},
        *({"size": (24, 61), "interpolation": mode} for mode in InterpolationMode),
        {"size": 24},
        {"size": [30], "max_size": 33},
        {"size": 3, "interpolation": 5},
    )

    def __str__(self) -> str:
        return f"Resize({self.height}×{self.width}, {filter_text(self.filter)})"

    @classmethod
    def read(cls, transform: Any) -> Resize | ResizeShorter:
        """`antialias` says nothing about PIL images."""
        return _read(transform, filter_of(transform), "pillow")

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Resize | ResizeShorter:
        op = _read(transform, tensor_filter_of(transform), "torch")
        if isinstance(op, Resize):
            check_result(op.height, op.width)
        else:
            check_result(op.size, op.size)  # of a square image
        return op

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return F.resize(image, [self.height, self.width], mode_of(self.filter), antialias=True)


@dataclass(frozen=True)
class ResizeShorter(_Resizing):  # which `Resize` reads
    """The shorter edge becomes `size`, the longer ``int(size * long / short)``. If that would exceed
    `max_size`, it becomes `max_size`, and the shorter ``int(max_size * shorter / longer)`` of these two."""

    size: int
    max_size: int | None
    filter: int

    native = "resize_shorter"

    def __str__(self) -> str:
        limit = "" if self.max_size is None else f", longer at most {self.max_size}"
        return f"Resize(shorter edge {self.size}{limit}, {filter_text(self.filter)})"

    def extent(self, before: Extent) -> Extent:
        if before.exact:
            return Extent(*self.output_size(before.height, before.width), exact=True)
        # Without max_size both edges reach `size`; with it the shorter edge of a long image may end up tiny.
        return Extent(self.size, self.size, exact=False) if self.max_size is None else UNKNOWN

    def output_size(self, height: int, width: int, draw: Draw = ()) -> tuple[int, int]:
        """(height, width) of the result for an input of height × width, by torchvision's arithmetic."""
        short, long = min(height, width), max(height, width)
        new_short, new_long = self.size, int(self.size * long / short)
        if self.max_size is not None and new_long > self.max_size:
            new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        return (new_long, new_short) if width <= height else (new_short, new_long)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return F.resize(image, [self.size], mode_of(self.filter), self.max_size, antialias=True)


def _read(transform: Any, filter_: int, arithmetic: Arithmetic) -> Resize | ResizeShorter:
    """Two sizes are exact, one is for the shorter edge."""
    if transform.size is None:
        raise NoNativeForm("size=None makes the longer edge max_size: no native form")
    sizes = list(transform.size) if isinstance(transform.size, Sequence) else [transform.size]
    if len(sizes) == 1:
        size = integer("size", sizes[0])
        limit = None
        check_size(size, size)
        if transform.max_size is not None:
            limit = integer("max_size", transform.max_size)
            if not size < limit <= MAX_SIZE:
                raise NoNativeForm(f"max_size ({limit}) must be greater than size ({size})")
        return ResizeShorter(size, limit, filter_, arithmetic=arithmetic)
    if transform.max_size is not None:
        raise NoNativeForm("max_size beside two sizes: torchvision raises an error for it")
    return Resize(*pair(sizes), filter_, arithmetic=arithmetic)


@dataclass(frozen=True)
class RandomResizedCrop(SizedOp):
    """A random box of the input, resized to height × width. `scale` bounds the box's area as a share of the
    input's, `ratio` its width / height; after ten tries it is the central box that fits."""

    scale: tuple[float, float]
    ratio: tuple[float, float]
    filter: int

    native = "random_resized_crop"
    matches = (v1.RandomResizedCrop, v2.RandomResizedCrop)
    parity: ClassVar[Parity] = "pillow"
    tensor_problem = TENSOR_RESIZE
    draws = ("top", "left", "height", "width")
    examples = (
        {"size": 24},
        {"size": (20, 31), "scale": (0.5, 2.0), "ratio": (1.0, 3.0), "antialias": False},
        {"size": 24, "scale": (3.0, 4.0)},  # never fits: the central box
        {"size": 24, "scale": (0.9, 1.0), "ratio": (9.0, 11.0)},  # the same, cut to the ratio
        {"size": 24, "scale": (0.9, 1.0), "ratio": (0.05, 0.1)},
        *({"size": 24, "interpolation": n} for n in range(6)),
    )

    def __str__(self) -> str:
        size, filter_ = f"{self.height}×{self.width}", filter_text(self.filter)
        scale, ratio = range_text(self.scale), range_text(self.ratio)
        return f"RandomResizedCrop({size}, scale {scale}, ratio {ratio}, {filter_})"

    @classmethod
    def read(cls, transform: Any) -> RandomResizedCrop:
        """`antialias` says nothing about PIL images: Pillow always does it."""
        return RandomResizedCrop(*_arguments(transform), filter_of(transform))

    @classmethod
    def read_on_tensor(cls, transform: Any) -> RandomResizedCrop:
        op = RandomResizedCrop(*_arguments(transform), tensor_filter_of(transform), arithmetic="torch")
        check_result(op.height, op.width)
        return op

    def params(self) -> tuple[float, ...]:
        # As torchvision computes it: the logarithm in float32.
        log_ratio = torch.log(torch.tensor(self.ratio)).tolist()
        return (self.height, self.width, self.filter, *self.scale, *log_ratio, *self.ratio)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        top, left, height, width = (int(value) for value in draw)
        size = [self.height, self.width]
        return F.resized_crop(image, top, left, height, width, size, mode_of(self.filter), antialias=True)


def _arguments(transform: Any) -> tuple[int, int, tuple[float, float], tuple[float, float]]:
    scale, ratio = bounds("scale", transform.scale), bounds("ratio", transform.ratio, exclusive=True)
    return (*pair(transform.size), scale, ratio)
