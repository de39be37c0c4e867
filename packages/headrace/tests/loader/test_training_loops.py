"""The loops of large training codes give the same with headrace's DataLoader as with torch's."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data._utils.collate import collate, default_collate_fn_map

import headrace
from support.datasets import Box, Made
from support.equal import same

N = 14


class Drawing(data.Dataset[Any]):
    """Samples of a number and of what all three generators give."""

    scale = 1

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "index": index * self.scale,
            "torch": torch.rand(2),
            "numpy": np.random.rand(),
            "python": random.random(),
        }


def repeating(loader_class: Any, workers: int) -> list[Any]:
    """One iterator after another, as a training loop by steps takes them (DeepSpeed, Megatron)."""
    loader = loader_class(Drawing(), 4, num_workers=workers, drop_last=True)
    batches, taken = iter(loader), []
    for _ in range(2 * len(loader) + 1):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        taken.append(batch)
    return taken


class EndlessSampler(data.Sampler[int]):
    """Permutations without end, this rank's share of them (detectron2, mmengine)."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[int]:
        yield from islice(self.indices(), self.rank, None, self.world_size)

    def indices(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(5)
        while True:
            yield from torch.randperm(N, generator=generator).tolist()


def seed_by_rank(worker: int, num_workers: int, rank: int, seed: int) -> None:
    """Seeds as a worker_init_fn of mmengine does."""
    number = num_workers * rank + worker + seed
    np.random.seed(number)
    random.seed(number)
    torch.manual_seed(number)


def endless_sampler(loader_class: Any, workers: int) -> list[Any]:
    init = partial(seed_by_rank, num_workers=workers, rank=1, seed=7)
    loader = loader_class(
        Drawing(),
        4,
        sampler=EndlessSampler(1, 2),
        num_workers=workers,
        worker_init_fn=init,
        persistent_workers=workers > 0,
        collate_fn=list,
    )
    return list(islice(loader, 9))


class Sharded(data.IterableDataset[Any]):
    """A map-style dataset in the order of a sampler, shared among workers (detectron2)."""

    def __init__(self, dataset: Any, sampler: Any) -> None:
        self.dataset, self.sampler = dataset, sampler

    def __iter__(self) -> Iterator[Any]:
        info = data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for index in islice(self.sampler, first, None, step):
            yield self.dataset[index]


class InPairs(data.IterableDataset[Any]):
    """Groups what a loader gives (detectron2's groups of images of the same aspect ratio)."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        pairs: dict[bool, list[Any]] = {False: [], True: []}
        for sample in self.loader:
            pair = pairs[sample["index"] % 3 == 0]
            pair.append(sample)
            if len(pair) == 2:
                yield pair[:]
                pair.clear()


def reseed(worker: int) -> None:
    """Seeds as a worker_init_fn of detectron2 does."""
    seed_by_rank(0, 0, 0, torch.initial_seed() % 2**31 + worker)


def grouped_stream(loader_class: Any, workers: int) -> list[Any]:
    inner = loader_class(
        Sharded(Drawing(), EndlessSampler(0, 1)),
        num_workers=workers,
        batch_size=None,
        collate_fn=_untouched,
        worker_init_fn=reseed,
    )
    return list(islice(InPairs(inner), 8))


def _untouched(sample: Any) -> Any:
    return sample


def frozen_batches(loader_class: Any, workers: int) -> list[Any]:
    """Batches that were made beforehand, from some place on, in a new loader for each epoch (fairseq)."""
    taken = []
    for epoch, offset in ((1, 2), (2, 0)):
        order = np.random.RandomState(epoch).permutation(N).tolist()
        batches = [order[i : i + 3] for i in range(0, N, 3)]
        loader = loader_class(
            Drawing(),
            collate_fn=data.default_collate,
            batch_sampler=batches[offset:],
            num_workers=workers,
            timeout=60 if workers else 0,
        )
        ahead = iter(loader)
        for number in count(offset):
            batch = next(ahead, None)
            if batch is None:
                break
            taken.append((number, batch))
    return taken


def seed_worker(worker: int) -> None:
    """Seeds as in PyTorch's notes on reproducibility, and in Ultralytics."""
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def own_generator(loader_class: Any, workers: int) -> list[Any]:
    generator = torch.Generator().manual_seed(6148914691236517205)
    loader = loader_class(
        Drawing(), 4, shuffle=True, num_workers=workers, worker_init_fn=seed_worker, generator=generator
    )
    return [list(loader), list(loader), generator.get_state()]


def _boxes(batch: list[Box], *, collate_fn_map: Any = None) -> Any:
    return ("boxes", [box.value for box in batch])


def _with_boxes(batch: list[Any]) -> Any:
    return collate(batch, collate_fn_map={**default_collate_fn_map, Box: _boxes})


def extended_collation(loader_class: Any, workers: int) -> list[Any]:
    boxes = Made(lambda index: {"box": Box(index), "pair": (torch.full((2,), index), str(index))}, N)
    return list(loader_class(boxes, 4, num_workers=workers, collate_fn=_with_boxes))


def changed_between_epochs(loader_class: Any, workers: int) -> list[Any]:
    """Changes what callbacks of trainers do: the dataset, the epoch of its sampler, the batch size."""
    dataset = Drawing()
    sampler: Any = data.DistributedSampler(dataset, num_replicas=2, rank=0, seed=1)
    loader = loader_class(dataset, 4, sampler=sampler, num_workers=workers)
    taken: list[Any] = [list(loader)]
    loader.dataset.scale = 10
    loader.sampler.set_epoch(1)
    taken.append(list(loader))
    loader.dataset.scale = 100
    loader.batch_sampler.batch_size = 3
    taken.append((len(loader), list(loader)))
    loader._iterator = None
    return [*taken, list(loader)]


def chained(loader_class: Any, workers: int) -> list[Any]:
    """Loaders of several tasks in turn, of which some end and start again."""
    loaders = [loader_class(Drawing(), size, num_workers=workers) for size in (4, 7)]
    ends, taken = [iter(loader) for loader in loaders], []
    for step in range(9):
        task = step % 2
        batch = next(ends[task], None)
        if batch is None:
            ends[task] = iter(loaders[task])
            batch = next(ends[task])
        taken.append(batch)
    return [*taken, *chain.from_iterable(ends)]


PATTERNS: dict[str, Callable[[Any, int], list[Any]]] = {
    each.__name__: each
    for each in (
        repeating,
        endless_sampler,
        grouped_stream,
        frozen_batches,
        own_generator,
        extended_collation,
        changed_between_epochs,
        chained,
    )
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_of_training_code_gives_what_it_does_with_torchs_loader(pattern: str, workers: int) -> None:
    found = []
    for loader_class in (headrace.DataLoader, data.DataLoader):
        seed_by_rank(0, 0, 0, 3)
        with_workers = partial(loader_class, multiprocessing_context="fork" if workers else None)
        taken = PATTERNS[pattern](with_workers, workers)
        found.append([taken, torch.rand(1), np.random.rand(), random.random()])
    assert same(*found)


class PerRank(headrace.DataLoader[Any]):
    """Keeps the states of ranks apart as bytes, as torchtitan does it for distributed checkpoints."""

    def __init__(self, dataset: Any, rank: int, **options: Any) -> None:
        super().__init__(dataset, **options)
        self.key = f"rank_{rank}"

    def state_dict(self) -> dict[str, Any]:
        return {self.key: pickle.dumps(super().state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict:
            super().load_state_dict(pickle.loads(state_dict[self.key]))


def test_a_subclass_that_wraps_states_resumes_from_a_checkpoint() -> None:
    first, other = (PerRank(range(N), 3, batch_size=2, num_workers=0) for _ in range(2))
    batches = iter(first)
    next(batches)
    file = io.BytesIO()
    torch.save({"loader": first.state_dict()}, file)
    file.seek(0)
    other.load_state_dict({})
    other.load_state_dict(torch.load(file)["loader"])
    assert same(list(other), list(batches))
