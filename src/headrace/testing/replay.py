"""Samples of a natively planned loader, made again by Pillow and torchvision."""

from __future__ import annotations

import numpy as np
import torch

from headrace.engine.lower import lower_pipeline
from headrace.engine.pillow import make_sample
from headrace.errors import ConfigError
from headrace.loader import DataLoader
from headrace.plan.erasing import draw_boxes, draw_noise
from headrace.plan.logical import RandomErasing, Step
from headrace.plan.physical import NativePlan
from headrace.plan.replay import replay_suffix
from headrace.records import BatchKeys, Draw, SampleKey
from headrace.sources.image import load_rgb


def draws(
    loader: DataLoader, index: int, epoch: int | None = None, occurrence: int = 0
) -> tuple[tuple[Step | RandomErasing, Draw], ...]:
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
    key = SampleKey(*loader.random_key(epoch), index, occurrence)
    image = load_rgb(plan.source.open(index))
    drawn = lower_pipeline(plan, decoders=0).draw(key, image.width, image.height)
    if drawn is None:
        raise ValueError(f"sample {index} is {image.width}×{image.height}: a crop of the pipeline is larger")
    steps = tuple(zip(plan.steps, drawn, strict=True))
    if plan.suffix is None or plan.suffix.erasing is None:
        return steps
    return (*steps, (plan.suffix.erasing.erase, _erased_box(plan, key)))


def replay(loader: DataLoader, index: int, epoch: int | None = None, occurrence: int = 0) -> torch.Tensor:
    """Sample `index` as torchvision makes it on a PIL image with the parameters that `draws` tells.

    Returns:
        [3, height, width] of the loader's dtype, on the CPU: bit for bit the row of its batch.

    Raises:
        ConfigError: as `draws`.
        SampleError: the sample can't be loaded.
    """
    plan = _native_plan(loader)
    key = SampleKey(*loader.random_key(epoch), index, occurrence)
    image = make_sample(plan, lower_pipeline(plan, decoders=0), key)
    box = _erased_box(plan, key)
    noise = None
    if plan.suffix is not None and plan.suffix.erasing is not None:
        noise = torch.from_numpy(draw_noise(key, plan.suffix.erasing.number, *box[2:]))
    return replay_suffix(image, plan.suffix, box, noise)


def _erased_box(plan: NativePlan, key: SampleKey) -> Draw:
    if plan.suffix is None or plan.suffix.erasing is None:
        return (0, 0, 0, 0)
    step = plan.suffix.erasing
    one = BatchKeys(key.seed, key.epoch, np.array([key.sample]), np.array([key.occurrence]))
    top, left, height, width = draw_boxes(step.erase, one, step.number, plan.height, plan.width)[0].tolist()
    return top, left, height, width


def _native_plan(loader: DataLoader) -> NativePlan:
    plan = loader.plan()
    if plan.native is None:
        raise ConfigError(f"This loader runs as Python, so nothing can be replayed:\n{loader.explain()}")
    return plan.native
