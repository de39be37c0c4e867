"""Loaders whose states earlier versions saved in golden/states.json.xz, with the samples that each gave next.

The file is never written again: it stands for the checkpoints that users have.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch.utils import data
from torch.utils.data import BatchSampler, RandomSampler, TensorDataset

import headrace
from headrace.order import Endless, LocalShuffled, RepeatedAugmentation, Shuffled, Weighted
from support.stateful import ByIterator, CountedStream, StatefulSampler

N = 23
BATCH_SIZE = 3

Make = Callable[[int], Any]  # a loader of the rank of that number


class Squares(data.Dataset[tuple[int, int]]):
    """A dataset that runs as Python."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index * index


class PlainStream(data.IterableDataset[int]):
    """A share of N numbers, without a state."""

    def __iter__(self) -> Any:
        info = data.get_worker_info()
        return iter(range(N) if info is None else range(info.id, N, info.num_workers))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(9)


def _loader(dataset: Callable[[], Any], options: Callable[[], dict[str, Any]], **common: Any) -> Make:
    def make(rank: int) -> Any:
        chosen = {"num_workers": 0, **common, **options()}
        if chosen.pop("ranks", False):
            chosen |= {"rank": rank, "world_size": 2}
        if "batch_sampler" not in chosen:
            chosen.setdefault("batch_size", BATCH_SIZE)
        return headrace.DataLoader(dataset(), **chosen)

    return make


def _rows() -> TensorDataset:
    return TensorDataset(torch.arange(N), torch.arange(N) ** 2)


ORDERS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": dict,
    "shuffled": lambda: {"shuffle": True},
    "shuffled by a seed": lambda: {"shuffle": True, "seed": 5},
    "shuffled by a generator": lambda: {"shuffle": True, "generator": generator()},
    "without the rest": lambda: {"shuffle": True, "drop_last": True},
    "one by one": lambda: {"shuffle": True, "batch_size": None},
    "two ranks": lambda: {"shuffle": True, "ranks": True},
    "two ranks by a seed, exactly": lambda: {
        "shuffle": True,
        "ranks": True,
        "seed": 4,
        "remainder": "exact",
    },
    "repeated": lambda: {"sampler": RepeatedAugmentation(N, 3)},
    "weighted": lambda: {"sampler": Weighted([1.0 + i for i in range(N)], 30), "seed": 3},
    "local": lambda: {"sampler": LocalShuffled([0, 7, 15, N], 12)},
    "torch's random": lambda: {"sampler": RandomSampler(range(N), generator=generator())},
    "torch's random by the global generator": lambda: {"sampler": RandomSampler(range(N), True, 40)},
    "torch's random and a seed": lambda: {"sampler": RandomSampler(range(N)), "seed": 6},
    "a list": lambda: {"sampler": [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2]},
    "stateful": lambda: {"sampler": StatefulSampler(N)},
    "batches": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(N)), 4, False)},
    "stateful batches": lambda: {"batch_sampler": BatchSampler(StatefulSampler(N), 4, True)},
}
WORKERS = {"num_workers": 2, "worker_kind": "process"}
STREAMS: dict[str, Callable[[], Any]] = {
    "stream with a state": lambda: CountedStream(N),
    "stream whose iterator has a state": ByIterator,
    "stream without a state": PlainStream,
}
LOADERS: dict[str, Make] = {
    **{f"rows, {name}": _loader(_rows, options) for name, options in ORDERS.items()},
    **{
        f"python, {name}": _loader(Squares, ORDERS[name], **WORKERS)
        for name in ("shuffled", "shuffled by a generator", "stateful", "batches", "two ranks")
    },
    **{
        f"kept workers, {name}": _loader(Squares, ORDERS[name], **WORKERS, persistent_workers=True)
        for name in (
            "shuffled",
            "shuffled by a generator",
            "torch's random",
            "stateful",
            "batches",
            "two ranks",
        )
    },
    **{name: _loader(stream, dict) for name, stream in STREAMS.items()},
    **{f"{name}, workers": _loader(stream, dict, **WORKERS) for name, stream in STREAMS.items()},
    **{
        f"{name}, kept workers": _loader(stream, dict, **WORKERS, persistent_workers=True)
        for name, stream in STREAMS.items()
    },
    "endless": _loader(lambda: range(10), lambda: {"sampler": Endless(Shuffled(10))}),
}


def is_by_workers(name: str) -> bool:
    """Returns whether worker processes make the samples of a loader of `LOADERS`."""
    return name.startswith("python") or "workers" in name


ENDLESS = 8  # batches of an endless epoch


def numbers_of(batch: Any) -> list[int]:
    """The indices of the samples of a batch."""
    first = batch[0] if isinstance(batch, (list, tuple)) else batch
    numbers: list[int] = torch.as_tensor(first).reshape(-1).tolist()
    return numbers


def resumed(make: Make, entry: dict[str, Any]) -> list[list[list[int]]]:
    """Returns by rank the batches of loaders that resume from a saved state."""
    rests = []
    for rank in range(len(entry["rests"])):
        torch.manual_seed(77)
        loader = make(rank)
        loader.load_state_dict(entry["state"])
        torch.manual_seed(2)  # between epochs, orders without a seed are drawn from here on
        most = ENDLESS if isinstance(loader.sampler, Endless) else None
        rests.append([numbers_of(batch) for batch in islice(loader, most)])
    return rests
