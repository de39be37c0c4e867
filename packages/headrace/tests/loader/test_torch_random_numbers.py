"""Without a seed, the user's Python draws the random numbers that it draws with torch's DataLoader."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data
from torchvision.datasets import ImageFolder

import headrace
from support.equal import same
from support.sampling import one_in

N = 22
Numbers = tuple[float, float, float, int]


def numbers() -> Numbers:
    """One of each generator, and the seed that a worker is said to have."""
    info = data.get_worker_info()
    return (
        torch.rand(()).item(),
        float(np.random.rand()),
        random.random(),
        -1 if info is None else info.seed,
    )


class Drawing(data.Dataset[Any]):
    """Each sample is its index and numbers that it draws."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, Numbers]:
        return index, numbers()


class DrawingBatches(Drawing):
    """The same, asked for whole batches."""

    def __getitems__(self, indices: list[int]) -> list[tuple[int, Numbers]]:
        torch.rand(1)  # not what sample by sample would draw
        return [self[index] for index in indices]


class DrawingOnceLoaded(Drawing):
    """The same, drawing also when it is unpickled: before a worker is seeded."""

    def __init__(self) -> None:
        self.at_start = 0.0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        torch.rand(7)
        np.random.rand(7)
        random.random()


class DrawingStream(data.IterableDataset[Any]):
    """Its share of N samples."""

    def __iter__(self) -> Iterator[tuple[int, Numbers]]:
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(worker, N, workers):
            yield index, numbers()


class ResumableStream(DrawingStream):
    """The same with a state, so that it doesn't run by torch's loader alone."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


class DrawingSampler(data.Sampler[int]):
    """Draws the order from torch's global generator, again in each epoch."""

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(N).tolist()


def draw_at_start(worker: int) -> None:
    """A worker_init_fn that draws, so that samples draw what comes after."""
    assert data.get_worker_info() is not None
    torch.rand(worker + 1)


def collate_drawing(samples: list[Any]) -> Any:
    """A collate function that draws."""
    return data.default_collate(samples), numbers()


def epochs(loader: Any, count: int = 2) -> list[Any]:
    """All batches of a few epochs, and what the calling process draws before, between and after them."""
    torch.manual_seed(5)
    np.random.seed(6)
    random.seed(7)
    seen: list[Any] = []
    for _ in range(count):
        seen.append([*loader])
        seen.append(numbers())
    return seen


def assert_equal_to_torch(dataset: Any, count: int = 2, **arguments: Any) -> None:
    ours = headrace.DataLoader(dataset, **arguments)
    assert same(epochs(ours, count), epochs(data.DataLoader(dataset, **arguments), count))


DATASETS = (Drawing, DrawingBatches, DrawingStream, ResumableStream)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning")
@pytest.mark.parametrize(
    ("dataset", "workers"),
    [
        *product(DATASETS, (0, 2)),
        *one_in(3, product(DATASETS, (1, 4))),
    ],
)
def test_user_code_draws_what_it_draws_with_torch(dataset: Any, workers: int) -> None:
    assert_equal_to_torch(dataset(), batch_size=4, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_unbatched_samples_draw_what_they_draw_with_torch(workers: int) -> None:
    assert_equal_to_torch(Drawing(), batch_size=None, num_workers=workers)


@pytest.mark.parametrize(
    ("method", "workers"), [("fork", 2), pytest.param("spawn", 1, marks=pytest.mark.long)]
)
def test_workers_draw_the_same_however_they_start(method: str, workers: int) -> None:
    started: dict[str, Any] = {"multiprocessing_context": method, "worker_init_fn": draw_at_start}
    assert_equal_to_torch(DrawingOnceLoaded(), 1, batch_size=4, num_workers=workers, **started)


@pytest.mark.parametrize("dataset", [Drawing(), DrawingStream(), ResumableStream()])
def test_workers_that_are_kept_go_on_drawing(dataset: Any) -> None:
    assert_equal_to_torch(dataset, 3, batch_size=4, num_workers=2, persistent_workers=True)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_seeds_come_from_the_loaders_generator_where_it_has_one(workers: int, persistent: bool) -> None:
    def loader(kind: Any) -> Any:
        generator = torch.Generator().manual_seed(3)
        kept = {"persistent_workers": True} if persistent and workers else {}
        return kind(Drawing(), 4, shuffle=True, num_workers=workers, generator=generator, **kept)

    assert same(epochs(loader(headrace.DataLoader)), epochs(loader(data.DataLoader)))


@pytest.mark.parametrize("workers", [0, 2])
def test_samplers_and_collate_functions_draw_in_torchs_order(workers: int) -> None:
    drawing: dict[str, Any] = {"sampler": DrawingSampler(), "collate_fn": collate_drawing}
    assert_equal_to_torch(Drawing(), batch_size=4, num_workers=workers, **drawing)


def test_a_loader_left_in_the_middle_seeds_the_next_epoch_as_torch_does() -> None:
    def first_batches(loader: Any) -> list[Any]:
        torch.manual_seed(5)
        return [next(iter(loader)) for _ in range(3)]

    ours = headrace.DataLoader(Drawing(), 4, num_workers=2)
    assert same(first_batches(ours), first_batches(data.DataLoader(Drawing(), 4, num_workers=2)))


@pytest.mark.parametrize("received", [0, 1, 4])
def test_kept_workers_go_on_drawing_as_torchs_after_an_epoch_that_was_left(received: int) -> None:
    def after_leaving(kind: Any) -> list[Any]:
        torch.manual_seed(5)
        loader = kind(Drawing(), 2, num_workers=2, persistent_workers=True)
        for _ in range(2):
            for number, _batch in enumerate(loader, start=1):
                if number > received:
                    break
        return list(loader)

    assert same(after_leaving(headrace.DataLoader), after_leaving(data.DataLoader))


class Draws(data.Sampler[int]):
    """Draws the order when it is started, not when it is asked for the first index."""

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(N).tolist())


ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {"batch_size": 4, "shuffle": True},
    "by a sampler": {"batch_size": 4, "sampler": Draws()},
    "one by one, by a sampler": {"batch_size": None, "sampler": DrawingSampler()},
    "in order": {"batch_size": 4},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("kind", ["python", "gathered", "native"])
def test_an_order_is_drawn_when_torch_draws_it(
    kind: str, seed: int | None, order: str, workers: int, dataset: ImageFolder
) -> None:
    datasets = {"python": Drawing(), "gathered": data.TensorDataset(torch.zeros(N)), "native": dataset}
    chosen: Any = data.Subset(datasets[kind], range(N)) if kind == "native" else datasets[kind]

    def states(loader: Any) -> list[torch.Tensor]:
        """Of the generator before an epoch, once it is started, and after the first batch."""
        torch.manual_seed(5)
        found = [torch.get_rng_state()]
        iterator = iter(loader)
        found.append(torch.get_rng_state())
        next(iterator)
        return [*found, torch.get_rng_state()]

    arguments = ORDERS[order]
    ours = states(headrace.DataLoader(chosen, num_workers=workers, seed=seed, **arguments))
    theirs = states(data.DataLoader(chosen, num_workers=workers, **arguments))
    if kind == "python" and workers == 0 and seed is not None:
        assert torch.equal(ours[1], theirs[1])  # then torch's samples draw, and ours from other generators
    else:
        assert same(ours, theirs)


def test_a_state_saved_before_the_first_batch_knows_the_order() -> None:
    loader = headrace.DataLoader(data.TensorDataset(torch.arange(N)), 4, shuffle=True)
    torch.manual_seed(5)
    iterator = iter(loader)
    state = loader.state_dict()
    whole = list(iterator)
    resumed = headrace.DataLoader(data.TensorDataset(torch.arange(N)), 4, shuffle=True)
    resumed.load_state_dict(state)
    assert same(list(resumed), whole)


def test_nothing_of_the_callers_generators_is_touched_without_workers() -> None:
    loader = headrace.DataLoader(Drawing(), 4, num_workers=0)
    torch.manual_seed(5)
    np.random.seed(6)
    random.seed(7)
    torch.empty((), dtype=torch.int64).random_()  # torch's own draw at the start of an epoch
    expected = [numbers() for _ in range(N)]
    torch.manual_seed(5)
    np.random.seed(6)
    random.seed(7)
    drawn = [tuple(column[i].item() for column in batch[1]) for batch in loader for i in range(len(batch[0]))]
    assert drawn == expected


def test_a_resumed_epoch_draws_other_numbers_than_its_start_did() -> None:
    loader = headrace.DataLoader(Drawing(), 2, num_workers=2)
    torch.manual_seed(5)
    whole = list(loader)
    batches = iter(loader)
    torch.manual_seed(5)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    resumed = headrace.DataLoader(Drawing(), 2, num_workers=2)
    resumed.load_state_dict(state)
    before = torch.get_rng_state()
    rest = list(resumed)
    assert torch.equal(torch.get_rng_state(), before)
    assert [batch[0].tolist() for batch in rest] == [batch[0].tolist() for batch in whole[2:]]
    assert not {*rest[0][1][0].tolist()} & {*whole[0][1][0].tolist()}


def test_ranks_without_a_seed_go_on_without_one_after_a_resume() -> None:
    def loader() -> headrace.DataLoader[Any]:
        return headrace.DataLoader(Drawing(), 2, shuffle=True, rank=0, world_size=2, num_workers=0)

    first = loader()
    next(iter(first))
    second = loader()
    second.load_state_dict(first.state_dict())
    torch.manual_seed(1)
    expected = numbers()[0]
    torch.manual_seed(1)
    assert next(iter(second))[1][0][0].item() == expected


def test_a_seed_makes_what_user_code_draws_a_function_of_the_sample() -> None:
    def drawn(workers: int, batch_size: int) -> dict[int, Any]:
        loader = headrace.DataLoader(Drawing(), batch_size, num_workers=workers, seed=3)
        return {
            int(batch[0][i]): [column[i].item() for column in batch[1][:3]]
            for batch in loader
            for i in range(len(batch[0]))
        }

    assert drawn(0, 4) == drawn(2, 5) == drawn(1, 22)


def test_explain_says_how_user_code_is_seeded() -> None:
    def text(**arguments: Any) -> str:
        return headrace.DataLoader(Drawing(), 4, **arguments).explain()

    label = "random numbers in Python: "
    assert label + "drawn from this process's generators, as in torch" in text(num_workers=0)
    assert label + "seeded once per worker, as in torch" in text(num_workers=2)
    assert label + "seeded for each sample by seed, epoch and index" in text(num_workers=2, seed=1)
    assert label + "not seeded" in text(num_workers=2, worker_kind="thread")
    assert label not in headrace.DataLoader(data.TensorDataset(torch.zeros(3))).explain()
