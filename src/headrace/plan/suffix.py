"""The end of a plan that works on whole batches of values, wherever they are."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from headrace.transforms.random_erasing import RandomErasing


@dataclass(frozen=True)
class ErasingStep:
    """RandomErasing in its place.

    Attributes:
        erase: what is drawn and written.
        number: of the step in the pipeline: its random numbers are those of this step.
        dtype: of the user's transform: `erase.value` becomes this first, and then the batch's dtype.
    """

    erase: RandomErasing
    number: int
    dtype: torch.dtype


@dataclass(frozen=True, eq=False)
class Suffix:
    """What is still to be done to a batch of images [n, channels, height, width], in this order.

    Attributes:
        table: [channels, 256], the value of each level of each channel, for images of uint8; None: they have
            their values already.
        erasing: None: nothing is erased.
        memory_format: of the result.
        on_device: it is done after the copy to the device, not before.
    """

    table: torch.Tensor | None = field(repr=False)
    erasing: ErasingStep | None
    memory_format: torch.memory_format = torch.contiguous_format
    on_device: bool = False
