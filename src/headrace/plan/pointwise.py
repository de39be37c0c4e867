"""The end of a pipeline as a table: what each level of each channel of an 8-bit picture becomes.

`ToTensor`, `Normalize` and their kin treat every pixel alike and every channel by itself. So the user's own
transforms, run once on a picture of all 256 levels, tell everything: looking pixels up gives their very bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

OUTPUT_DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)

LEVELS = 256


@dataclass(frozen=True, eq=False)
class PointwiseTable:
    """What the levels become.

    Attributes:
        values: [3, 256] of `dtype`; None when every level stays itself (uint8).
        dtype: one of OUTPUT_DTYPES.
        sample_type: the class of tensor that the transforms return.
    """

    values: torch.Tensor | None
    dtype: torch.dtype
    sample_type: type[torch.Tensor]


def run_suffix(image: Image.Image, transforms: Sequence[Callable[[Any], Any]]) -> Any:
    """The user's own transforms, applied to `image` one after another."""
    value: Any = image
    for transform in transforms:
        value = transform(value)
    return value


def build_table(transforms: Sequence[Callable[[Any], Any]]) -> PointwiseTable | str:
    """The table of `transforms`, or a reason why they can't be one."""
    levels = np.arange(LEVELS, dtype=np.uint8)
    try:
        result = run_suffix(_picture(levels, levels, levels, height=1), transforms)
    except Exception as error:  # the user's arguments may be wrong in any way: Python will show it
        return f"raises {type(error).__name__}: {error}"
    problem = _problem(result)
    if problem is not None:
        return problem
    values = _plain(result[:, 0, :])
    if not _agrees(values, transforms):
        return "treats pixels by their place or channels together: no table of levels can do that"
    is_identity = values.dtype == torch.uint8 and bool((values == torch.from_numpy(levels)).all())
    return PointwiseTable(None if is_identity else values, values.dtype, type(result))


def cast_table(table: PointwiseTable, dtype: torch.dtype | None) -> PointwiseTable | str:
    """`table` with a cast to `dtype` behind it, or a reason why that can't be; None casts nothing."""
    if dtype is None or dtype == table.dtype:
        return table
    if table.dtype.is_floating_point and not dtype.is_floating_point:
        return f"the transform gives {table.dtype}: a cast to {dtype} would cut off fractions"
    return PointwiseTable(as_values(table).to(dtype), dtype, table.sample_type)


def as_values(table: PointwiseTable) -> torch.Tensor:
    """[3, 256] of the table's dtype, the identity spelt out."""
    if table.values is not None:
        return table.values
    return torch.arange(LEVELS, dtype=torch.uint8).expand(3, LEVELS).contiguous()


def look_up(image: Image.Image, values: torch.Tensor | None) -> torch.Tensor:
    """The RGB `image` as a contiguous tensor [3, height, width], levels replaced by their `values`.

    `values` is [3, 256] of any dtype; None keeps the levels (uint8).
    """
    if image.mode != "RGB":
        raise ValueError(f"the image must be RGB, not {image.mode}")
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    if values is None:
        return pixels
    channels = [values[c][pixels[c].to(torch.int64)] for c in range(3)]
    return torch.stack(channels)


def _picture(*channels: np.ndarray[Any, np.dtype[np.uint8]], height: int) -> Image.Image:
    pixels = np.stack([channel.reshape(height, -1) for channel in channels], axis=-1)
    return Image.fromarray(pixels)


def _problem(result: Any) -> str | None:
    if not isinstance(result, torch.Tensor):
        return f"gives {type(result).__name__} rather than a tensor: batches can't be made of that"
    if tuple(result.shape) != (3, 1, LEVELS):
        return f"gives shape {list(result.shape)} for an RGB picture of 1×{LEVELS}, not [3, 1, {LEVELS}]"
    if result.dtype not in OUTPUT_DTYPES:
        allowed = ", ".join(str(d).removeprefix("torch.") for d in OUTPUT_DTYPES)
        return f"gives {result.dtype}: native code writes {allowed}"
    if result.device.type != "cpu" or result.requires_grad:
        return "gives a tensor on a device, or one that needs gradients"
    return None


def _plain(values: torch.Tensor) -> torch.Tensor:
    return values.as_subclass(torch.Tensor).clone(memory_format=torch.contiguous_format)


def _agrees(values: torch.Tensor, transforms: Sequence[Callable[[Any], Any]]) -> bool:
    """Whether the table foretells another picture: other places, other neighbours, other frequencies."""
    order = np.arange(LEVELS)
    shuffles = [((order * step + 7) % LEVELS) ** 2 // LEVELS for step in (77, 165, 211)]
    image = _picture(*(levels.astype(np.uint8) for levels in shuffles), height=16)
    try:
        result = run_suffix(image, transforms)
    except Exception:  # such as statistics of the first picture's very shape
        return False
    if tuple(result.shape) != (3, 16, 16) or result.dtype != values.dtype:
        return False
    # Bits, not values: NaN must agree too, and 0.0 isn't -0.0.
    return torch.equal(_bits(look_up(image, values)), _bits(_plain(result)))


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)
