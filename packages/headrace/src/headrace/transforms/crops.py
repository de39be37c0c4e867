"""Crops and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms import v2
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.op import (
    MAX_SIZE,
    NO_GRAY,
    TENSOR_PIXELS,
    Extent,
    ImageOp,
    NoNativeForm,
    Settled,
    SizedOp,
)
from headrace.transforms.reading import fill_color, integer, pair, tensor_fill

# In the order of native code's PaddingMode.
PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]
PADDING_MODES: tuple[str, ...] = get_args(PaddingMode)

# Of FiveCrop and TenCrop.
PLACES = 5
MIRRORED = ("no", "horizontally", "vertically")

TENSOR_PADDING = "may pad a tensor, after normalisation rather than before; put it before the conversion"


def check_padding(padding: Sequence[int], padding_mode: str) -> None:
    """Raises NoNativeForm for sides (left, top, right, bottom) that native code pads no image with."""
    if not all(-MAX_SIZE <= side <= MAX_SIZE for side in padding):
        raise NoNativeForm(f"padding {padding} must be sides of up to {MAX_SIZE}")
    if padding_mode not in PADDING_MODES:
        raise NoNativeForm(f"padding_mode {padding_mode!r} must be one of {', '.join(PADDING_MODES)}")
    if padding_mode != "constant" and min(padding) < 0 < max(padding):
        raise NoNativeForm(f"padding {padding} with {padding_mode!r} mirrors what is left")


@dataclass(frozen=True)
class _Window(SizedOp):
    """A window of height × width, padded where the input is smaller; `fill` (red, green, blue) is for
    'constant'."""

    padding_mode: PaddingMode = "constant"
    fill: tuple[int, int, int] = (0, 0, 0)

    tensor_problem = TENSOR_PADDING  # if it pads

    def params(self) -> tuple[float, ...]:
        return (self.height, self.width, PADDING_MODES.index(self.padding_mode), *self.fill)


@dataclass(frozen=True)
class CenterCrop(_Window):
    """The middle of the input, at a place rounded to even numbers. It is timm's CenterCropOrPad, too."""

    native = "center_crop"
    matches = (v1.CenterCrop, v2.CenterCrop)
    matches_imported = ("timm.data.transforms.CenterCropOrPad",)
    examples = ({"size": (24, 17)}, {"size": (60, 51)}, {"size": 1}, {"size": [31, 90]})

    def __str__(self) -> str:
        return f"CenterCrop({self.height}×{self.width})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        # torchvision's pads with black, whatever attributes an object may have.
        padding = () if isinstance(transform, cls.matches) else _timms_padding(transform)
        return cls(*pair(transform.size), *padding)

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        if not isinstance(transform, cls.matches):
            raise NoNativeForm(TENSOR_PIXELS)
        return cls.read(transform)

    def settle(self, before: Extent, *, on_tensor: bool) -> Settled:
        if before == self.extent(before):
            return Settled(None, before)
        pads = on_tensor and not before.holds(self.height, self.width)
        return Settled(self, self.extent(before), problem=TENSOR_PADDING if pads else "")

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        wide, high = max(0, self.width - image.width), max(0, self.height - image.height)
        if wide or high:
            sides = [wide // 2, high // 2, (wide + 1) // 2, (high + 1) // 2]
            image = F.pad(image, sides, fill=self.fill, padding_mode=self.padding_mode)
        return F.center_crop(image, [self.height, self.width])


@dataclass(frozen=True)
class RandomCropOrPad(_Window):
    """timm's: the window is anywhere in the input along the edges that are longer, the input anywhere in the
    window along those that are shorter."""

    native = "crop_or_pad"
    gray_problem = NO_GRAY
    matches_imported = ("timm.data.transforms.RandomCropOrPad",)
    draws = ("top of the window; below 0 if it is above the image", "left")
    examples = (
        {"size": 24, "padding_mode": "reflect"},
        {"size": (50, 31), "fill": (1, 2, 3)},
        {"size": (35, 90), "padding_mode": "edge"},
    )

    def __str__(self) -> str:
        return f"RandomCropOrPad({self.height}×{self.width}, {self.padding_mode})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        return cls(*pair(transform.size), *_timms_padding(transform))

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        top, left = int(draw[0]), int(draw[1])
        below = max(0, top + self.height - image.height)
        right = max(0, left + self.width - image.width)
        sides = [max(0, -left), max(0, -top), right, below]
        if any(sides):
            image = F.pad(image, sides, fill=self.fill, padding_mode=self.padding_mode)
        return F.crop(image, max(0, top), max(0, left), self.height, self.width)


@dataclass(frozen=True)
class RandomCrop(SizedOp):
    """A window of height × width at a random place of the padded input.

    `padding` (left, top, right, bottom) cuts the input where it is negative. With `pad_if_needed` a padded
    width that is still short of `width` by d gets d further columns on *both* sides; height likewise. All of
    it is one padding of the original pixels; `fill` (red, green, blue) is for 'constant'. A padded input
    smaller than the window is an error of the sample.
    """

    padding: tuple[int, int, int, int] | None = None
    pad_if_needed: bool = False
    fill: tuple[int, int, int] = (0, 0, 0)
    padding_mode: PaddingMode = "constant"

    native = "random_crop"
    matches = (v1.RandomCrop, v2.RandomCrop)
    tensor_problem = TENSOR_PADDING  # if it pads
    draws = ("top in the padded image", "left")
    examples = (
        {"size": (24, 17)},
        {"size": (33, 33)},
        {"size": 41, "padding": (3, 4, 5, 6), "fill": (1, 2, 3)},
        {"size": 45, "padding": (8, 9), "padding_mode": "edge"},
        {"size": 45, "padding": [7], "padding_mode": "reflect"},
        {"size": 45, "padding": 7, "padding_mode": "symmetric"},
        {"size": (50, 60), "pad_if_needed": True, "fill": 9},
        {"size": (50, 60), "padding": 2, "pad_if_needed": True, "padding_mode": "edge"},
        {"size": (90, 200), "pad_if_needed": True, "padding_mode": "reflect"},
        {"size": (90, 200), "pad_if_needed": True, "padding_mode": "symmetric"},
        {"size": 20, "padding": (-4, 9, 8, -3), "fill": 7},
        {"size": (15, 10), "padding": (-1, 0, -2, 0), "padding_mode": "reflect"},
    )
    v2_examples = ({"size": 45, "padding": 9, "fill": {Image.Image: 7, "others": 0}},)

    def __post_init__(self) -> None:
        check_padding(self.padding or (0,), self.padding_mode)
        if self.pad_if_needed and min(self.padding or (0,)) < 0:
            raise NoNativeForm(f"padding {self.padding} and pad_if_needed cut the image, and pad it again")

    def __str__(self) -> str:
        parts = [f"{self.height}×{self.width}"]
        parts += [] if self.padding is None else [f"padding {self.padding}"]
        parts += ["pad if needed"] if self.pad_if_needed else []
        fill = f"fill {self.fill}" if self.padding_mode == "constant" else self.padding_mode
        return f"RandomCrop({', '.join([*parts, fill] if self.may_pad else parts)})"

    @property
    def may_pad(self) -> bool:
        """True if pixels from outside the input can appear."""
        return self.padding is not None or self.pad_if_needed

    @classmethod
    def read(cls, transform: Any) -> Self:
        is_v2 = isinstance(transform, v2.Transform)
        padding = None if transform.padding is None else sides_of(transform.padding)
        if is_v2 and padding is not None:  # it keeps left, right, top, bottom
            padding = (padding[0], padding[2], padding[1], padding[3])
        mirrors = transform.padding_mode in ("reflect", "symmetric")
        if not is_v2 and transform.pad_if_needed and padding is not None and mirrors:
            # v1 pads up to three times: the second padding mirrors the first one's pixels.
            raise NoNativeForm(
                f"padding and pad_if_needed with {transform.padding_mode!r} mirrors what is mirrored already"
            )
        pad_if_needed = bool(transform.pad_if_needed)
        pads = padding is not None or pad_if_needed
        # If nothing is padded, neither the mode nor the color is ever looked at.
        mode: Any = transform.padding_mode if pads else "constant"
        fill = fill_color(transform) if pads and mode == "constant" else (0, 0, 0)
        return cls(*pair(transform.size), padding, pad_if_needed, fill, mode)

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        op = cls.read(transform)
        if min(op.padding or (0,)) < 0:
            raise NoNativeForm(f"padding {op.padding} cuts a tensor, which not every mode can")
        return replace(op, fill=tensor_fill(transform)) if op.may_pad else op

    def params(self) -> tuple[float, ...]:
        padding, mode = self.padding or (0, 0, 0, 0), PADDING_MODES.index(self.padding_mode)
        return (self.height, self.width, *padding, self.pad_if_needed, mode, *self.fill)

    def settle(self, before: Extent, *, on_tensor: bool) -> Settled:
        after = self.extent(before)
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        step = self
        # On a tensor even padding by nothing may raise an error for its fill.
        if not on_tensor and not any((left, top, right, bottom)):
            step = replace(step, padding=None)
        padded = before.grown(top + bottom, left + right)
        if step.pad_if_needed and padded.holds(step.height, step.width):
            step = replace(step, pad_if_needed=False)
        if not step.pad_if_needed and padded.exact and not padded.holds(step.height, step.width):
            sizes = f"{step.height}×{step.width} from {padded.height}×{padded.width}"
            return Settled(step, after, problem=f"cuts {sizes}, for which torchvision raises an error")
        if not step.may_pad and before == after:
            return Settled(None, after)
        return Settled(step, after, problem=TENSOR_PADDING if on_tensor and step.may_pad else "")

    def total_padding(self, height: int, width: int) -> tuple[int, int, int, int]:
        """(left, top, right, bottom) that an input of height × width gets, `pad_if_needed` included."""
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        if self.pad_if_needed:
            short_x = max(0, self.width - (width + left + right))
            short_y = max(0, self.height - (height + top + bottom))
            left, right, top, bottom = left + short_x, right + short_x, top + short_y, bottom + short_y
        return left, top, right, bottom

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        padding = self.total_padding(image.height, image.width)
        if any(padding):
            image = F.pad(image, list(padding), fill=self.fill, padding_mode=self.padding_mode)
        if image.height < self.height or image.width < self.width:
            sizes = (self.height, self.width), (image.height, image.width)
            raise ValueError("Required crop size {} is larger than input image size {}".format(*sizes))
        return F.crop(image, int(draw[0]), int(draw[1]), self.height, self.width)


@dataclass(frozen=True)
class Pad(ImageOp):
    """`padding` (left, top, right, bottom) around the input, which is cut where it is negative."""

    padding: tuple[int, int, int, int]
    padding_mode: PaddingMode
    fill: tuple[int, int, int]

    native = "pad"
    keeps_info = False
    matches = (v1.Pad, v2.Pad)
    tensor_problem = TENSOR_PADDING
    examples = (
        {"padding": 3},
        {"padding": 0},
        {"padding": [4], "fill": (1, 2, 3)},
        {"padding": (2, 5), "padding_mode": "edge"},
        {"padding": (1, 2, 3, 4), "padding_mode": "reflect"},
        {"padding": (9, 0, 1, 60), "padding_mode": "symmetric"},
        {"padding": (-3, 2, 1, -2), "fill": 200},
    )
    v2_examples = ({"padding": 2, "fill": {Image.Image: 7, "others": 0}},)

    def __post_init__(self) -> None:
        check_padding(self.padding, self.padding_mode)

    def __str__(self) -> str:
        kind = f"fill {self.fill}" if self.padding_mode == "constant" else self.padding_mode
        return f"Pad({self.padding}, {kind})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        fill = fill_color(transform) if transform.padding_mode == "constant" else (0, 0, 0)
        return cls(sides_of(transform.padding), transform.padding_mode, fill)

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        return replace(cls.read(transform), fill=tensor_fill(transform))

    def params(self) -> tuple[float, ...]:
        return (*self.padding, PADDING_MODES.index(self.padding_mode), *self.fill)

    def extent(self, before: Extent) -> Extent:
        left, top, right, bottom = self.padding
        after = before.grown(top + bottom, left + right)
        if after.height >= 1 and after.width >= 1:
            return after
        return Extent(max(1, after.height), max(1, after.width), exact=False)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return F.pad(image, list(self.padding), fill=self.fill, padding_mode=self.padding_mode)


@dataclass(frozen=True)
class MultiCrop(SizedOp):
    """The four corners and the middle of the input, height × width each, one below the other; then those of
    the input mirrored, if `mirrored` is another place in `MIRRORED` than 0."""

    mirrored: int

    native = "multi_crop"
    matches = (v1.FiveCrop, v1.TenCrop, v2.FiveCrop, v2.TenCrop)
    tensor_problem = ""
    examples = ({"size": (17, 24)}, {"size": 1}, {"size": [31, 30]}, {"size": (9, 2)})

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", 2 * PLACES if self.mirrored else PLACES)
        if self.height * self.views > MAX_SIZE:
            raise NoNativeForm(f"{self.views} crops of {self.height} rows are more than {MAX_SIZE} rows")

    def __str__(self) -> str:
        flipped = f", mirrored {MIRRORED[self.mirrored]}" if self.mirrored else ""
        return f"{'TenCrop' if self.mirrored else 'FiveCrop'}({self.height}×{self.width}{flipped})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        ten = isinstance(transform, (v1.TenCrop, v2.TenCrop))
        mirrored = (2 if transform.vertical_flip else 1) if ten else 0
        return cls(*pair(transform.size), mirrored)

    def extent(self, before: Extent) -> Extent:
        return Extent(self.height * self.views, self.width, exact=True)

    def settle(self, before: Extent, *, on_tensor: bool) -> Settled:
        after = self.extent(before)
        if before.exact and not before.holds(self.height, self.width):
            sizes = f"{self.height}×{self.width} from {before.height}×{before.width}"
            return Settled(self, after, problem=f"cuts {sizes}, for which torchvision raises an error")
        return Settled(self, after)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        size = [self.height, self.width]
        crops = F.ten_crop(image, size, self.mirrored == 2) if self.mirrored else F.five_crop(image, size)
        strip = Image.new(image.mode, (self.width, self.height * len(crops)))
        for i, crop in enumerate(crops):
            strip.paste(crop, (0, i * self.height))
        return strip


def _timms_padding(transform: Any) -> tuple[PaddingMode, tuple[int, int, int]]:
    """The mode and the color."""
    mode: Any = transform.padding_mode
    check_padding((0,), mode)
    return mode, fill_color(transform) if mode == "constant" else (0, 0, 0)


def sides_of(padding: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of one number for all sides, two for those along each axis, or four."""
    sides = [integer("padding", p) for p in (padding if isinstance(padding, (tuple, list)) else [padding])]
    if len(sides) not in (1, 2, 4):
        raise NoNativeForm(f"padding of {len(sides)} values: torchvision takes 1, 2 or 4")
    left, top, right, bottom = sides * (4 // len(sides))
    return left, top, right, bottom
