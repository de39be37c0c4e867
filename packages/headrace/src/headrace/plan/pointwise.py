"""The end of a pipeline as a table: what each level of each channel of an 8-bit image becomes.

`ToTensor`, `Normalize` and their kin treat every pixel alike and every channel by itself. So user
transforms, run once on an image of all 256 levels, say everything: looking pixels up gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

OUTPUT_DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)

LEVELS = 256


@dataclass(frozen=True, eq=False)
class PointwiseTable:
    """The values that levels become.

    Attributes:
        values: [channels, 256] of `dtype`, or None if every level stays itself (uint8).
        dtype: one of OUTPUT_DTYPES.
        sample_type: class of the tensors that the transforms return.
        channels: channels of the images: 3 or 1.
        by_pixel: whether those tensors have the channels of a pixel side by side in memory.
    """

    values: torch.Tensor | None
    dtype: torch.dtype
    sample_type: type[torch.Tensor]
    channels: int = 3
    by_pixel: bool = False


def run_suffix(image: Any, transforms: Sequence[Callable[[Any], Any]]) -> Any:
    """User transforms, applied to `image`, or a tuple of several, one after another."""
    for transform in transforms:
        image = transform(image)
    return image


def build_table(transforms: Sequence[Callable[[Any], Any]], channels: int = 3) -> PointwiseTable | str:
    """The table of `transforms` for images of 3 (RGB) or 1 (L) channels, or a reason why there is none."""
    levels = np.arange(LEVELS, dtype=np.uint8)
    try:
        result = run_suffix(_image_of([levels] * channels, height=1), transforms)
    except Exception as error:  # the user's arguments may be wrong in any way: Python will show it
        return f"raises {type(error).__name__}: {error}"
    problem = _problem(result, channels)
    if problem is not None:
        return problem
    values = _plain(result[:, 0, :])
    if not _agrees(values, transforms, channels):
        return "treats pixels by their place or channels together: no table of levels can do that"
    is_identity = values.dtype == torch.uint8 and bool((values == torch.from_numpy(levels)).all())
    by_pixel = result.stride(0) == 1
    return PointwiseTable(None if is_identity else values, values.dtype, type(result), channels, by_pixel)


def with_strides_by_pixel(images: torch.Tensor) -> torch.Tensor:
    """Images [n, channels, height, width] with the channels of a pixel side by side in memory, by their
    strides, too; a copy if they are stored otherwise."""
    _, channels, height, width = images.shape
    stored = images.contiguous(memory_format=torch.channels_last)
    return stored.as_strided(images.shape, (height * width * channels, 1, width * channels, channels))


def build_table_of_views(
    views: int, transforms: Sequence[Callable[[Any], Any]], channels: int
) -> PointwiseTable | str:
    """The table of `transforms` that are called with a tuple of `views` images and give one tensor,
    [views, channels, height, width]; or a reason why there is none."""

    def of_one(image: Image.Image) -> Any:
        result = run_suffix((image,) * views, transforms)
        if not isinstance(result, torch.Tensor) or result.ndim != 4 or len(result) != views:
            shown = list(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
            raise ValueError(
                f"{views} crops become {shown}, not one tensor [{views}, {channels}, height, width]"
            )
        return result[0]

    table = build_table([of_one], channels)
    if isinstance(table, str):
        return table
    levels = np.arange(LEVELS, dtype=np.uint8)
    images = [
        _image_of([np.roll(levels, 3 * i + c) for c in range(channels)], height=16) for i in range(views)
    ]
    expected = torch.stack([look_up(image, as_values(table)) for image in images])
    result = _plain(run_suffix(tuple(images), transforms))
    if result.shape != expected.shape or not torch.equal(_bits(result), _bits(expected)):
        return "treats crops differently, or in another order: no table of levels can do that"
    return table


def cast_table(table: PointwiseTable, dtype: torch.dtype | None) -> PointwiseTable | str:
    """`table` with a cast to `dtype`, if that isn't None, behind it, or a reason why that can't be."""
    if dtype is None or dtype == table.dtype:
        return table
    if table.dtype.is_floating_point and not dtype.is_floating_point:
        return f"the transform gives {table.dtype}: a cast to {dtype} would cut off fractions"
    return replace(table, values=as_values(table).to(dtype), dtype=dtype)


def as_values(table: PointwiseTable) -> torch.Tensor:
    """[channels, 256] of the table's dtype, the identity spelt out."""
    if table.values is not None:
        return table.values
    return torch.arange(LEVELS, dtype=torch.uint8).expand(table.channels, LEVELS).contiguous()


def look_up(image: Image.Image, values: torch.Tensor | None) -> torch.Tensor:
    """The RGB or L `image` as a contiguous tensor [channels, height, width], levels replaced by `values`:
    [channels, 256] of any dtype, or None to keep the levels (uint8)."""
    channels = len(image.getbands())
    if image.mode not in ("RGB", "L"):
        raise ValueError(f"the image must be RGB or L, not {image.mode}")
    if values is not None and len(values) != channels:
        raise ValueError(f"values of {len(values)} channels aren't for an image of mode {image.mode}")
    pixels = torch.from_numpy(np.array(image)).view(image.height, image.width, channels)
    pixels = pixels.permute(2, 0, 1).contiguous()
    return pixels if values is None else look_up_levels(pixels, values)


def look_up_levels(pixels: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`pixels`, uint8 [channels, height, width], with each level replaced by its value."""
    return torch.stack([values[c][pixels[c].to(torch.int64)] for c in range(len(pixels))])


def _image_of(channels: Sequence[npt.NDArray[np.uint8]], height: int) -> Image.Image:
    pixels = np.stack([channel.reshape(height, -1) for channel in channels], axis=-1)
    return Image.fromarray(pixels if len(channels) == 3 else pixels[:, :, 0])


def _problem(result: Any, channels: int) -> str | None:
    if not isinstance(result, torch.Tensor):
        return f"gives {type(result).__name__} rather than a tensor: batches can't be made of that"
    if tuple(result.shape) != (channels, 1, LEVELS):
        given = f"an image of {channels} channels and 1×{LEVELS} pixels"
        return f"gives shape {list(result.shape)} for {given}, not [{channels}, 1, {LEVELS}]"
    if result.dtype not in OUTPUT_DTYPES:
        allowed = ", ".join(str(d).removeprefix("torch.") for d in OUTPUT_DTYPES)
        return f"gives {result.dtype}: native code writes {allowed}"
    if result.device.type != "cpu" or result.requires_grad:
        return "gives a tensor on a device, or one that needs gradients"
    return None


def _plain(values: torch.Tensor) -> torch.Tensor:
    return values.as_subclass(torch.Tensor).clone(memory_format=torch.contiguous_format)


def _agrees(values: torch.Tensor, transforms: Sequence[Callable[[Any], Any]], channels: int) -> bool:
    """Returns whether the table predicts another image: other places, other neighbours, other frequencies."""
    order = np.arange(LEVELS)
    shuffles = [((order * step + 7) % LEVELS) ** 2 // LEVELS for step in (77, 165, 211)]
    planes = [levels.astype(np.uint8) for levels in shuffles[:channels]]
    image = _image_of(planes, height=16)
    try:
        result = run_suffix(image, transforms)
    except Exception:  # such as statistics of the first image's very shape
        return False
    if tuple(result.shape) != (channels, 16, 16) or result.dtype != values.dtype:
        return False
    # Bits, not values: NaN must agree too, and 0.0 isn't -0.0.
    pixels = torch.from_numpy(np.stack(planes)).view(channels, 16, 16)
    return torch.equal(_bits(look_up_levels(pixels, values)), _bits(_plain(result)))


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)
