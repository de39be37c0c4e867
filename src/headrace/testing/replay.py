"""Samples of a natively planned loader, made again by Pillow and torchvision."""

from __future__ import annotations

import torch

from headrace.engine.lower import lower_pipeline
from headrace.engine.pillow import make_sample
from headrace.errors import ConfigError
from headrace.loader import DataLoader
from headrace.plan.logical import Step
from headrace.plan.physical import NativePlan
from headrace.records import Draw, SampleKey
from headrace.sources.image import load_rgb


def draws(
    loader: DataLoader, index: int, epoch: int | None = None, occurrence: int = 0
) -> tuple[tuple[Step, Draw], ...]:
    """What is drawn for each step of sample `index` in `epoch`: the crop's box, whether it is flipped, …

    Args:
        loader: natively planned.
        index: in the dataset, 0 or more.
        epoch: its number; None: the epoch begun last. Without a seed only that one can be told.
        occurrence: of this index in the epoch: 0 (the default) where it comes once. See
            `headrace.order.Order.at`; with a sampler of torch's, how often the index came before.

    Returns:
        (step, draw) pairs in order; see `headrace.records.Draw` for the four numbers.

    Raises:
        ConfigError: the loader isn't natively planned, or the epoch's seed isn't known.
        ValueError: a crop of the pipeline is larger than this image.
    """
    plan = _native_plan(loader)
    image = load_rgb(plan.source.open(index))
    drawn = lower_pipeline(plan, decoders=0).draw(
        SampleKey(*loader.random_key(epoch), index, occurrence), image.width, image.height
    )
    if drawn is None:
        raise ValueError(f"sample {index} is {image.width}×{image.height}: a crop of the pipeline is larger")
    return tuple(zip(plan.steps, drawn, strict=True))


def replay(loader: DataLoader, index: int, epoch: int | None = None, occurrence: int = 0) -> torch.Tensor:
    """Sample `index` as torchvision makes it on a PIL image with the parameters that `draws` tells.

    Returns:
        [3, height, width] of the loader's dtype: bit for bit the row of its batch.

    Raises:
        ConfigError: as `draws`.
        SampleError: the sample can't be loaded.
    """
    plan = _native_plan(loader)
    return make_sample(
        plan, lower_pipeline(plan, decoders=0), SampleKey(*loader.random_key(epoch), index, occurrence)
    )


def _native_plan(loader: DataLoader) -> NativePlan:
    plan = loader.plan()
    if plan.native is None:
        raise ConfigError(f"This loader runs as Python, so nothing can be replayed:\n{loader.explain()}")
    return plan.native
