"""Resize: to a size, or of the shorter edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)

from headrace.records import Draw
from headrace.transforms.on_tensors import check_result, tensor_filter_of, through_tensor
from headrace.transforms.op import NO_EFFECT, UNKNOWN, Extent, ImageOp, NoNativeForm, Parity, Settled
from headrace.transforms.reading import (
    MAX_SIZE,
    check_filter,
    check_size,
    filter_of,
    filter_text,
    integer,
    made,
    mode_of,
    pair,
)

TENSOR_RESIZE = "resizes a tensor other than uint8 RGB, and not natively; put it before the conversion"
NOTHING_LEFT = "leaves nothing of the shorter edge"


class _Resizing(ImageOp):
    parity: ClassVar[Parity] = "pillow"
    tensor_problem = TENSOR_RESIZE

    def settle(self, before: Extent, *, on_tensor: bool) -> Settled:
        after = self.extent(before)
        if after.height == 0 or after.width == 0:
            return Settled(self, UNKNOWN, problem=NOTHING_LEFT)
        if after.exact and after == before:
            return Settled(None, after, NO_EFFECT)
        return super().settle(before, on_tensor=on_tensor)


@dataclass(frozen=True)
class Resize(_Resizing):
    """The whole input, resized to exactly height × width."""

    height: int
    width: int
    filter: int

    native = "resize"
    gray_problem = ""
    matches = (v1.Resize, v2.Resize)
    examples = (
        {"size": (24, 30)},
        {"size": (24, 30), "antialias": None},
        *({"size": (24, 61), "interpolation": mode} for mode in InterpolationMode),
        {"size": 24},
        {"size": [30], "max_size": 33},
        {"size": 3, "interpolation": 5},
    )

    def __post_init__(self) -> None:
        check_size(self.height, self.width)
        check_filter(self.filter, self.parity)

    def __str__(self) -> str:
        return f"Resize({self.height}×{self.width}, {filter_text(self.filter)})"

    @classmethod
    def read(cls, transform: Any) -> Resize | ResizeShorter:
        """`antialias` says nothing about PIL images."""
        return _read(transform, filter_of(transform), Resize, ResizeShorter)

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Resize | ResizeShorter:
        return _read(transform, tensor_filter_of(transform), TensorResize, TensorResizeShorter)

    def params(self) -> tuple[float, ...]:
        return (self.height, self.width, self.filter)

    def extent(self, before: Extent) -> Extent:
        return Extent(self.height, self.width, exact=True)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return F.resize(image, [self.height, self.width], mode_of(self.filter))


@dataclass(frozen=True)
class ResizeShorter(_Resizing):
    """The shorter edge becomes `size`, the longer ``int(size * long / short)``.

    Where the longer would exceed `max_size`, it becomes that, and the shorter
    ``int(max_size * shorter / longer)`` of these two.
    """

    size: int
    max_size: int | None
    filter: int

    native = "resize_shorter"
    gray_problem = ""
    matches = ()  # `Resize` reads it
    examples = ()

    def __post_init__(self) -> None:
        check_size(self.size, self.size)
        check_filter(self.filter, self.parity)
        if self.max_size is not None and not self.size < self.max_size <= MAX_SIZE:
            raise ValueError(f"max_size ({self.max_size}) must be greater than size ({self.size})")

    def __str__(self) -> str:
        limit = "" if self.max_size is None else f", longer at most {self.max_size}"
        return f"Resize(shorter edge {self.size}{limit}, {filter_text(self.filter)})"

    @classmethod
    def read(cls, transform: Any) -> Resize | ResizeShorter:
        return Resize.read(transform)

    def params(self) -> tuple[float, ...]:
        return (self.size, self.max_size or 0, self.filter)

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
        return F.resize(image, [self.size], mode_of(self.filter), self.max_size)


@dataclass(frozen=True)
class TensorResize(Resize):
    """A uint8 tensor, resized by torch, antialiased."""

    parity = "torch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_result(self.height, self.width)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        size, mode = [self.height, self.width], mode_of(self.filter)
        return through_tensor(image, lambda tensor: v2.functional.resize(tensor, size, mode, antialias=True))


@dataclass(frozen=True)
class TensorResizeShorter(ResizeShorter):
    """The same of the shorter edge."""

    parity = "torch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_result(self.size, self.size)  # of a square image

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        size, limit, mode = [self.size], self.max_size, mode_of(self.filter)
        return through_tensor(
            image, lambda tensor: v2.functional.resize(tensor, size, mode, limit, antialias=True)
        )


def _read(
    transform: Any, number: int, exact: type[Resize], shorter: type[ResizeShorter]
) -> Resize | ResizeShorter:
    """Two sizes are exact, one is for the shorter edge; `number` is the filter's."""
    if transform.size is None:
        raise NoNativeForm("size=None makes the longer edge max_size: no native form")
    sizes = list(transform.size) if isinstance(transform.size, Sequence) else [transform.size]
    if len(sizes) == 1:
        limit = None if transform.max_size is None else integer("max_size", transform.max_size)
        return made(shorter, integer("size", sizes[0]), limit, number)
    if transform.max_size is not None:
        raise NoNativeForm("max_size beside two sizes: torchvision raises an error for it")
    return made(exact, *pair(sizes), number)
