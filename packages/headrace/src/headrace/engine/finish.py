"""The last work on whole batches: a cast, and the user's batch_transform, such as MixUp."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from headrace.device.structure import map_leaves
from headrace.engine.seeding import generators_kept, seed_generators
from headrace.order.permutation import key_of
from headrace.records import BatchKeys
from headrace.transforms.origin import located

# Sets the seeds of a batch apart from those of its first sample and of the user's collate function.
BATCH = 0x6261746368


@dataclass(frozen=True)
class Cast:
    """The cast that the user asked for of images made by Python: four-dimensional tensors."""

    dtype: torch.dtype | None
    memory_format: torch.memory_format

    def __call__(self, batch: Any, keys: BatchKeys | None) -> Any:  # noqa: ARG002
        """The batch, its images cast."""
        return map_leaves(batch, self._cast)

    def _cast(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.ndim == 4:
            return leaf.to(dtype=self.dtype, memory_format=self.memory_format)
        return leaf


class BatchTransform:
    """Calls `transform` with each batch, on the device that the batch is on.

    Called as ``transform(images, labels)`` for a list or tuple of two, else as ``transform(batch)``; what it
    returns is the batch. torch's generators (the CPU's and the device's), NumPy's and Python's are seeded for
    it from (seed, epoch, first sample) alone, and put back afterwards. A `TypeError` is raised again with how
    it was called.
    """

    def __init__(self, transform: Callable[..., Any], device: torch.device) -> None:
        self._transform = transform
        self._device = device

    def __call__(self, batch: Any, keys: BatchKeys | None) -> Any:
        """The batch, transformed. Without keys the generators are left as they are."""
        pair = isinstance(batch, (list, tuple)) and len(batch) == 2
        arguments = tuple(batch) if pair else (batch,)
        with seeded_batch(keys, self._device) if keys is not None and len(keys) else nullcontext():
            try:
                return self._transform(*arguments)
            except TypeError as error:
                if type(error) is not TypeError:
                    raise
                raise TypeError(self._why(error, arguments)) from error

    def _why(self, error: TypeError, arguments: tuple[Any, ...]) -> str:
        name = located(self._transform)
        names = "images, labels" if len(arguments) == 2 else "batch"
        given = " and ".join(map(_described, arguments))
        return (
            f"batch_transform ({name}) failed: {error}. It is called with the finished batch, not with single"
            f" samples: batch_transform({names}), here with {given}. Let it take these arguments and return"
            " the batch."
        )


def _described(part: Any) -> str:
    """A part of a batch in a few words."""
    if isinstance(part, torch.Tensor):
        return f"{part.dtype} {list(part.shape)}"
    name = type(part).__name__
    return f"{name} of {len(part)}" if isinstance(part, (list, tuple, dict)) else name


@contextmanager
def seeded_batch(keys: BatchKeys, device: torch.device) -> Iterator[None]:
    """All generators seeded from the first of `keys`, and put back as they were at the end."""
    seed = key_of(*keys[0], BATCH)
    with generators_kept():
        seed_generators(seed)
        if device.type == "cpu":
            yield
            return
        with torch.random.fork_rng([device.index or 0], device_type=device.type):
            module = torch.get_device_module(device)
            with module.device(device):
                module.manual_seed(seed)
            yield
