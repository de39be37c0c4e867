"""Samples of a loader, made again by Pillow, torchvision and the user's Python."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)

from headrace.engine.error_policy import ErrorPolicyDataset
from headrace.engine.lower import draws_of, lower_pipeline, make_sample, read_sample
from headrace.engine.seeding import generators_kept, seed_generators
from headrace.errors import ConfigError
from headrace.loader import DataLoader
from headrace.order.permutation import key_of
from headrace.plan.pointwise import look_up_levels
from headrace.plan.segments import ErasingStep, NativeSegment, ValueSegment
from headrace.records import BatchKeys, Draw, SampleKey
from headrace.transforms.op import Op, flat
from headrace.transforms.random_erasing import draw_boxes, draw_noise


def draws(
    loader: DataLoader[Any], index: int, epoch: int | None = None, occurrence: int = 0
) -> tuple[tuple[Op, Draw], ...]:
    """Returns what is drawn for each step of sample `index` in `epoch`: the crop's box, the flip and so on.

    Args:
        loader: natively planned; code that runs as Python draws from the generators of torch, NumPy and
            Python.
        index: in the dataset, 0 or more.
        epoch: its number; by default the epoch started last. Without a seed only that one is known.
        occurrence: of this index in the epoch: 0 (the default) if it comes once. See
            `headrace.order.Order.at`; with a sampler of torch's, how often the index came before.

    Returns:
        (step, draw) pairs in order; `step.draws` names the numbers of a draw. Steps without randomness have
        none. Steps inside of another follow it, whether it applied them or not.

    Raises:
        ConfigError: native code has no part in this loader, or the epoch's seed isn't known.
        ValueError: a crop of the pipeline is larger than this image.
    """
    plan = loader.plan()
    native = plan.find(NativeSegment)
    if native is None:
        raise ConfigError(f"Native code has no part in this loader, and draws nothing:\n{loader.explain()}")
    key = SampleKey(*loader.random_key(epoch), index, occurrence)
    image, _ = read_sample(native, index)
    drawn = draws_of(lower_pipeline(native, decoders=0), native.ops, key, image.width, image.height)
    if drawn is None:
        raise ValueError(f"sample {index} is {image.width}×{image.height}: a crop of the pipeline is larger")
    steps = tuple(zip(flat(native.ops), drawn, strict=True))
    erasing = None if plan.values is None else plan.values.erasing
    if erasing is None:
        return steps
    return (*steps, (erasing.erase, _erased_box(erasing, key, native.height, native.width)))


def replay(loader: DataLoader[Any], index: int, epoch: int | None = None, occurrence: int = 0) -> Any:
    """Sample `index` as torchvision makes it on a PIL image with the parameters that `draws` returns. If the
    dataset runs as Python, it is called as in the loader, with the generators seeded alike; what it draws
    from a generator of its own, and what it asks of `get_worker_info()`, isn't replayed.

    Args:
        loader: of a map-style dataset.
        index, epoch, occurrence: as for `draws`.

    Returns:
        If the plan is native, the image, [channels, height, width] of the loader's dtype, on the CPU: bit for
        bit the row of its batch. If the dataset runs as Python or is gathered from memory,
        ``loader.dataset[index]``: the whole sample before it is collated and cast.

    Raises:
        ConfigError: the epoch's seed isn't known; or code drew random numbers of which nobody knows what they
            were in the loader: without a `seed`, on threads, or in a dataset that makes whole batches. Or the
            dataset is an `IterableDataset`, which has no sample of an index.
        SampleError: the sample can't be loaded by native code. The user's code raises its own errors.
    """
    plan = loader.plan()
    native = plan.find(NativeSegment)
    if native is None:
        return _replay_python(loader, index, epoch, occurrence)
    key = SampleKey(*loader.random_key(epoch), index, occurrence)
    image, _ = make_sample(native, lower_pipeline(native, decoders=0), key)
    return _with_values(image, plan.values, key)


def _replay_python(loader: DataLoader[Any], index: int, epoch: int | None, occurrence: int) -> Any:
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            "an IterableDataset itself decides which samples come: none has an index to replay."
        )
    on_threads = loader.worker_kind == "thread" and loader.num_workers > 0
    batched = loader.batch_sampler is not None
    guarded = ErrorPolicyDataset(loader.dataset, loader.collate_fn, loader.on_error, batched=batched)
    seed = None
    if loader.seed is not None and not on_threads and not guarded.takes_batches():
        seed = key_of(*loader.random_key(epoch), index, occurrence)
    with _generators(seed):
        return loader.dataset[index]


@contextmanager
def _generators(seed: int | None) -> Iterator[None]:
    """Within this the generators are seeded for a sample, and are then put back.

    Args:
        seed: seed of the sample, or None if it isn't known, so that nothing may be drawn.

    Raises:
        ConfigError: something was.
    """
    with generators_kept():
        seed_generators(seed or 0)
        before = _states()
        yield
        if seed is None and _states() != before:
            raise ConfigError(
                "Code that runs as Python drew random numbers for this sample, and nobody knows what it drew"
                " in the loader. Give the loader a seed to replay samples (on threads, and in a dataset with"
                " __getitems__, samples aren't seeded one by one and can't be replayed)."
            )


def _states() -> tuple[Any, ...]:
    numpys: Any = np.random.get_state()
    return (
        torch.default_generator.get_state().numpy().tobytes(),
        random.getstate(),
        (numpys[1].tobytes(), *numpys[2:]),
    )


def _with_values(image: torch.Tensor, values: ValueSegment | None, key: SampleKey) -> torch.Tensor:
    """One sample, [channels, height, width] as native code writes it, after `values`."""
    if values is None:
        return image
    if values.table is not None and values.table.values is not None:
        image = look_up_levels(image, values.table.values)
    step = values.erasing
    if step is None:
        return image
    box = _erased_box(step, key, image.shape[1], image.shape[2])
    if not box[2] * box[3]:
        return image
    if step.erase.value is None:
        new = torch.from_numpy(draw_noise(key, step.number, *step.erase.noise_size(*box[2:])))
    else:
        new = torch.tensor(step.erase.value)[:, None, None]
    erased: torch.Tensor = F.erase(image, *box, new.to(step.dtype))
    return erased


def _erased_box(step: ErasingStep, key: SampleKey, rows: int, columns: int) -> tuple[int, int, int, int]:
    one = BatchKeys(key.seed, key.epoch, np.array([key.sample]), np.array([key.occurrence]))
    top, left, height, width = draw_boxes(step.erase, one, step.number, rows, columns)[0].tolist()
    return top, left, height, width
