"""What must happen to a picture, step by step: frozen values, checked when made, nothing that runs.

Sizes are in pixels, height before width. Filters are values of ``PIL.Image.Resampling``, 0 to 5. A step
means what the torchvision transform of its name means on an RGB PIL image; the catalogue says which becomes
which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from PIL.Image import Resampling

PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]
PADDING_MODES: tuple[str, ...] = get_args(PaddingMode)

# Those that torchvision has names for; Pillow has grown more of them.
FILTERS = (
    Resampling.NEAREST,
    Resampling.LANCZOS,
    Resampling.BILINEAR,
    Resampling.BICUBIC,
    Resampling.BOX,
    Resampling.HAMMING,
)

# Far beyond any picture, and small enough that products of two sizes fit 64 bits.
MAX_SIZE = 1 << 20


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random box of the input, resized to height × width.

    `scale` bounds the box's area as a share of the input's, `ratio` its width / height; ten tries, then the
    central box that fits, as torchvision does it.
    """

    height: int
    width: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    filter: int

    def __post_init__(self) -> None:
        _check_size(self.height, self.width)
        _check_filter(self.filter)
        _check_range("scale", self.scale, lowest=0.0, exclusive=False)
        _check_range("ratio", self.ratio, lowest=0.0, exclusive=True)

    def __str__(self) -> str:
        scale, ratio = _range_text(self.scale), _range_text(self.ratio)
        return f"RandomResizedCrop({_size_text(self)}, scale {scale}, ratio {ratio}, {_filter_text(self)})"


@dataclass(frozen=True)
class Resize:
    """The whole input, resized to exactly height × width."""

    height: int
    width: int
    filter: int

    def __post_init__(self) -> None:
        _check_size(self.height, self.width)
        _check_filter(self.filter)

    def __str__(self) -> str:
        return f"Resize({_size_text(self)}, {_filter_text(self)})"


@dataclass(frozen=True)
class ResizeShorter:
    """The shorter edge becomes `size`, the longer ``int(size * long / short)``.

    Where the longer would exceed `max_size`, it becomes that, and the shorter
    ``int(max_size * shorter / longer)`` of these two.
    """

    size: int
    max_size: int | None
    filter: int

    def __post_init__(self) -> None:
        _check_size(self.size, self.size)
        _check_filter(self.filter)
        if self.max_size is not None and not self.size < self.max_size <= MAX_SIZE:
            raise ValueError(f"max_size ({self.max_size}) must be greater than size ({self.size})")

    def __str__(self) -> str:
        limit = "" if self.max_size is None else f", longer at most {self.max_size}"
        return f"Resize(shorter edge {self.size}{limit}, {_filter_text(self)})"

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the result for an input of height × width, by torchvision's arithmetic."""
        short, long = min(height, width), max(height, width)
        new_short, new_long = self.size, int(self.size * long / short)
        if self.max_size is not None and new_long > self.max_size:
            new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        return (new_long, new_short) if width <= height else (new_short, new_long)


@dataclass(frozen=True)
class CenterCrop:
    """The middle height × width of the input; where that is smaller, black is added around it first."""

    height: int
    width: int

    def __post_init__(self) -> None:
        _check_size(self.height, self.width)

    def __str__(self) -> str:
        return f"CenterCrop({_size_text(self)})"


@dataclass(frozen=True)
class RandomCrop:
    """A window of height × width at a random place of the padded input.

    The padded input is the input with `padding` (left, top, right, bottom) around it; with `pad_if_needed` a
    padded width that is still short of `width` by d gets d further columns on *both* sides; height likewise.
    All of it is one padding of the original pixels with `padding_mode`; `fill` (red, green, blue) is for
    'constant'. A padded input smaller than the window is an error of the sample.
    """

    height: int
    width: int
    padding: tuple[int, int, int, int] | None = None
    pad_if_needed: bool = False
    fill: tuple[int, int, int] = (0, 0, 0)
    padding_mode: PaddingMode = "constant"

    def __post_init__(self) -> None:
        _check_size(self.height, self.width)
        if self.padding is not None and not all(0 <= p <= MAX_SIZE for p in self.padding):
            raise ValueError(f"padding {self.padding} must be 0 or more on each side")
        if self.padding is not None and len(self.padding) != 4:
            raise ValueError(f"padding {self.padding} must be (left, top, right, bottom)")
        if len(self.fill) != 3 or not all(0 <= f <= 255 for f in self.fill):
            raise ValueError(f"fill {self.fill} must be three levels of 0 to 255")
        if self.padding_mode not in PADDING_MODES:
            raise ValueError(f"padding_mode {self.padding_mode!r} must be one of {', '.join(PADDING_MODES)}")

    def __str__(self) -> str:
        extras = [] if self.padding is None else [f"padding {self.padding}"]
        extras += ["pad if needed"] if self.pad_if_needed else []
        if self.may_pad:
            extras.append(f"fill {self.fill}" if self.padding_mode == "constant" else self.padding_mode)
        return f"RandomCrop({', '.join([_size_text(self), *extras])})"

    @property
    def may_pad(self) -> bool:
        """Whether pixels from outside the input can appear."""
        return self.padding is not None or self.pad_if_needed

    def total_padding(self, height: int, width: int) -> tuple[int, int, int, int]:
        """(left, top, right, bottom) that an input of height × width gets, `pad_if_needed` included."""
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        if self.pad_if_needed:
            short_x = max(0, self.width - (width + left + right))
            short_y = max(0, self.height - (height + top + bottom))
            left, right, top, bottom = left + short_x, right + short_x, top + short_y, bottom + short_y
        return left, top, right, bottom


@dataclass(frozen=True)
class HorizontalFlip:
    """Mirrored left to right with probability `p`."""

    p: float

    def __post_init__(self) -> None:
        _check_probability(self.p)

    def __str__(self) -> str:
        return f"HorizontalFlip(p {self.p:g})"


@dataclass(frozen=True)
class VerticalFlip:
    """Mirrored top to bottom with probability `p`."""

    p: float

    def __post_init__(self) -> None:
        _check_probability(self.p)

    def __str__(self) -> str:
        return f"VerticalFlip(p {self.p:g})"


@dataclass(frozen=True)
class RandomErasing:
    """A random box of the values overwritten with probability `p`: the last step, after the conversion.

    `scale` bounds the box's area as a share of the image's, `ratio` its height / width; ten tries, and where
    none fits nothing is erased, as torchvision does it. `value` is one number, or one per channel; None:
    standard normal noise of float32.
    """

    p: float
    scale: tuple[float, float]
    ratio: tuple[float, float]
    value: tuple[float, ...] | None

    def __post_init__(self) -> None:
        _check_probability(self.p)
        _check_range("scale", self.scale, lowest=0.0, exclusive=False)
        _check_range("ratio", self.ratio, lowest=0.0, exclusive=True)
        if self.value is not None and len(self.value) not in (1, 3):
            raise ValueError(f"value {self.value} must be one number, or one for each of 3 channels")

    def __str__(self) -> str:
        scale, ratio = _range_text(self.scale), _range_text(self.ratio)
        numbers = None if self.value is None else ", ".join(f"{v:.4g}" for v in self.value)
        value = "random" if numbers is None else numbers if len(self.value or ()) == 1 else f"({numbers})"
        return f"RandomErasing(p {self.p:g}, scale {scale}, ratio {ratio}, value {value})"


Step = RandomResizedCrop | Resize | ResizeShorter | CenterCrop | RandomCrop | HorizontalFlip | VerticalFlip
Flip = HorizontalFlip | VerticalFlip
Crop = CenterCrop | RandomCrop


def _check_size(height: int, width: int) -> None:
    if not (1 <= height <= MAX_SIZE and 1 <= width <= MAX_SIZE):
        raise ValueError(f"size {height}×{width} must be 1 to {MAX_SIZE} pixels each way")


def _check_filter(value: int) -> None:
    if value not in FILTERS:
        raise ValueError(
            f"filter {value} must be 0 to 5: nearest, lanczos, bilinear, bicubic, box or hamming"
        )


def _check_range(name: str, value: tuple[float, float], *, lowest: float, exclusive: bool) -> None:
    low, high = value
    too_low = low <= lowest if exclusive else low < lowest
    if too_low or low > high or not math.isfinite(low) or not math.isfinite(high):
        bound = f"{'>' if exclusive else '>='} {lowest:g}"
        raise ValueError(f"{name} {value} must be (low, high), finite, {bound}, low <= high")


def _check_probability(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p ({p}) must be 0 to 1")


def _size_text(step: RandomResizedCrop | Resize | Crop) -> str:
    return f"{step.height}×{step.width}"


def _filter_text(step: RandomResizedCrop | Resize | ResizeShorter) -> str:
    return Resampling(step.filter).name.lower()


def _range_text(value: tuple[float, float]) -> str:
    return f"{value[0]:.4g}–{value[1]:.4g}"
