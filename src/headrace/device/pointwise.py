"""Levels to values on whatever device the images are: the bits that the user's own transforms give."""

from __future__ import annotations

import numpy as np
import torch

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def look_up_batch(
    images: torch.Tensor,
    values: torch.Tensor,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> torch.Tensor:
    """`images` with each level replaced by its value.

    Args:
        images: uint8 [n, channels, height, width], with any strides.
        values: [channels, 256] of any dtype, on the device of `images`.
        memory_format: of the result: `torch.contiguous_format` or `torch.channels_last`.

    Returns:
        [n, channels, height, width] of the dtype of `values`; bit for bit `headrace.plan.pointwise.look_up`.
    """
    result = torch.empty(images.shape, dtype=values.dtype, device=images.device, memory_format=memory_format)
    if images.device.type == "cpu":
        _look_up_on_cpu(images, values, result)
        return result
    # A channel at a time: an index takes four bytes, and all of them at once twelve times the images.
    for channel in range(images.shape[1]):
        levels = images[:, channel].to(torch.int32)
        result[:, channel] = values[channel].index_select(0, levels.reshape(-1)).view(levels.shape)
    return result


def _look_up_on_cpu(images: torch.Tensor, values: torch.Tensor, result: torch.Tensor) -> None:
    """By NumPy, in this thread: torch's own threads wait for each other on a machine that is busy loading.
    NumPy has no bfloat16, and needs none to move bits."""
    bits = BITS[values.element_size()]
    levels, table, out = images.numpy(), values.view(bits).numpy(), result.view(bits).numpy()
    for channel in range(images.shape[1]):
        out[:, channel] = np.take(table[channel], levels[:, channel], mode="clip")
