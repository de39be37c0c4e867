"""Random numbers of the user's Python: seeded by sample, or what torch's loader would draw."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data import Subset, TensorDataset, WeightedRandomSampler
from torchvision.datasets import ImageFolder

import headrace
import headrace.testing
from headrace.order import Endless, RepeatedAugmentation, Sequential
from support.datasets import DrawnOrder
from support.equal import same
from support.noisy_dataset import Noisy, NoisyBatches, noisy_collate
from support.sampling import one_in

N = 30


def by_index(loader: headrace.DataLoader) -> dict[int, Any]:
    """Samples of `Noisy` by their index."""
    return {
        int(i): (drawn, float(numpys), float(pythons))
        for indices, draws, *others in loader
        for i, drawn, numpys, pythons in zip(indices, draws, *others, strict=True)
    }


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 1, 2, 7])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_python_samples_are_the_same_on_any_workers(workers: int, batch_size: int) -> None:
    expected = by_index(headrace.DataLoader(Noisy(N), N, seed=3, num_workers=0))
    assert len({drawn for _, drawn, _ in expected.values()}) == N
    got = by_index(headrace.DataLoader(Noisy(N), batch_size, shuffle=True, seed=3, num_workers=workers))
    assert same(got, {i: expected[i] for i in got})
    assert len(got) == N


@pytest.mark.parametrize(
    "context",
    ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.long)],
)
def test_python_samples_are_the_same_on_any_kind_of_worker(context: str) -> None:
    expected = list(headrace.DataLoader(Noisy(N), 8, seed=3, num_workers=0, collate_fn=noisy_collate))
    loader = headrace.DataLoader(
        Noisy(N), 8, seed=3, num_workers=1, multiprocessing_context=context, collate_fn=noisy_collate
    )
    assert same(list(loader), expected)


@pytest.mark.parametrize("workers", [0, 1, 2, 7])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_native_samples_are_the_same_on_any_threads(
    pictures: ImageFolder, workers: int, batch_size: int
) -> None:
    whole = next(iter(headrace.DataLoader(pictures, N, seed=3, num_workers=2)))[0]
    loader = headrace.DataLoader(pictures, batch_size, seed=3, num_workers=workers)
    assert torch.equal(torch.cat([images for images, _ in loader]), whole)


def test_epochs_differ_and_persistent_workers_know() -> None:
    loader = headrace.DataLoader(Noisy(N), 8, seed=3, num_workers=1, persistent_workers=True)
    first, second = by_index(loader), by_index(loader)
    assert not any(same(first[i], second[i]) for i in range(N))
    loader.set_epoch(0)
    assert same(by_index(loader), first)


def test_whole_batches_and_subsets() -> None:
    loader = headrace.DataLoader(NoisyBatches(N), 8, seed=3, num_workers=0)
    assert same(list(loader), list(headrace.DataLoader(NoisyBatches(N), 8, seed=3, num_workers=1)))
    part = Subset(Subset(Noisy(N), range(20)), [4, 7, 19])
    one, three = (by_index(headrace.DataLoader(part, size, seed=3, num_workers=0)) for size in (1, 3))
    assert same(one, three)


def test_a_sample_is_seeded_alike_by_any_of_its_indices() -> None:
    first = next(iter(headrace.DataLoader(Noisy(N), sampler=[-1], seed=1, num_workers=0)))
    last = next(iter(headrace.DataLoader(Noisy(N), sampler=[torch.tensor(N - 1)], seed=1, num_workers=0)))
    assert same(first[1:], last[1:])


def test_keys_that_are_not_numbers() -> None:
    class ByName(Noisy):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(0)[1:]

    def draws(*names: str) -> Any:
        return list(headrace.DataLoader(ByName(), sampler=list(names), seed=1, num_workers=0))

    assert same(draws("a", "b", "a")[:2], draws("b", "a")[::-1])
    assert not same(*draws("a", "a"))


@pytest.mark.parametrize("collate", [None, noisy_collate])
def test_the_callers_generators_are_left_alone(pictures: ImageFolder, collate: Any) -> None:
    def numbers() -> list[float]:
        return [float(torch.rand(())), float(np.random.rand()), random.random()]

    for dataset in (Noisy(N), TensorDataset(torch.arange(N)), pictures):
        loader = headrace.DataLoader(dataset, 8, seed=1, num_workers=0, collate_fn=collate)
        drawn = []
        for use in (True, False):
            torch.manual_seed(1), np.random.seed(1), random.seed(1)
            iterator = iter(loader)
            if use:
                list(iterator)
            drawn.append(numbers())
        assert drawn[0] == drawn[1]


def test_an_index_that_comes_again_is_drawn_for_again(pictures: ImageFolder) -> None:
    loader = headrace.DataLoader(pictures, 3, sampler=[5, 5, 8, 5, -25, 8], seed=4, num_workers=2)
    images = torch.cat([images for images, _ in loader])
    for position, (index, occurrence) in enumerate([(5, 0), (5, 1), (8, 0), (5, 2), (5, 3), (8, 1)]):
        assert torch.equal(images[position], headrace.testing.replay(loader, index, occurrence=occurrence))
    assert len({image.numpy().tobytes() for image in images}) == 6
    drawn = {headrace.testing.draws(loader, 5, occurrence=occurrence) for occurrence in range(4)}
    assert len(drawn) == 4


@pytest.mark.parametrize("kind", ["native", "python"])
def test_occurrences_of_our_orders(pictures: ImageFolder, kind: str) -> None:
    dataset: Any = pictures if kind == "native" else Noisy(N)
    plain = list(headrace.DataLoader(dataset, 1, seed=6, num_workers=1))
    order = RepeatedAugmentation(N, 3, 3 * N)
    repeated = list(headrace.DataLoader(dataset, 3, sampler=order, seed=6, num_workers=1))
    which = 1 if kind == "python" else 0
    for position in range(N):
        index = int(order.at(np.array([3 * position]), 6, 0)[0][0])
        three = repeated[position][which]
        assert torch.equal(three[0], plain[index][which][0])
        assert not torch.equal(three[0], three[1])
        assert not torch.equal(three[1], three[2])


def test_endless_passes_differ(pictures: ImageFolder) -> None:
    loader = iter(headrace.DataLoader(pictures, N, sampler=Endless(Sequential(N)), seed=6, num_workers=1))
    first, second = next(loader), next(loader)
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], second[0])


def test_skipped_and_replaced_samples_are_as_random() -> None:
    class Broken(Noisy):
        def __getitem__(self, index: int) -> Any:
            if index == 3:
                raise ValueError("broken")
            return super().__getitem__(index)

    whole = by_index(headrace.DataLoader(Noisy(N), 8, seed=1, num_workers=0))
    loader = headrace.DataLoader(Broken(N), 8, seed=1, num_workers=0, on_error="skip")
    got = by_index(loader)
    del whole[3]
    assert same(got, whole)
    replaced = headrace.DataLoader(Broken(N), 8, seed=1, num_workers=0, on_error="replace")
    assert [i for batch in replaced for i in batch[0].tolist()][:6] == [0, 1, 2, 4, 4, 5]


def test_torchs_weighted_sampler_repeats_with_other_parameters() -> None:
    sampler = WeightedRandomSampler([1.0, 0.0, 0.0], 5)
    loader = headrace.DataLoader(Noisy(3), 5, sampler=sampler, num_workers=0)
    indices, drawn, *_ = next(iter(loader))
    assert indices.tolist() == [0] * 5
    assert len(drawn.unique(dim=0)) == 5


class Counted(Noisy):
    """Counts how often each sample is asked for, in memory that worker processes share."""

    def __init__(self, size: int, draws_from: int) -> None:
        super().__init__(size)
        self.draws_from = draws_from
        self.asked = torch.zeros(size, dtype=torch.int64).share_memory_()

    def __getitem__(self, index: int) -> Any:
        self.asked[index] += 1
        return super().__getitem__(index) if index >= self.draws_from else (index, *[0.0] * 3)


@pytest.mark.parametrize("draws_from", [0, 1, 13, N])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_sample_is_asked_for_once(workers: int, draws_from: int) -> None:
    dataset = Counted(N, draws_from)
    loader = headrace.DataLoader(dataset, 8, seed=1, num_workers=workers, collate_fn=list)
    for epochs in (1, 2):
        assert sum(len(batch) for batch in loader) == N
        assert dataset.asked.tolist() == [epochs] * N


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_fails_after_a_draw_is_asked_for_once(workers: int) -> None:
    class Broken(Counted):
        def __getitem__(self, index: int) -> Any:
            made = super().__getitem__(index)
            if index == 3:
                raise ValueError("broken")
            return made

    dataset = Broken(8, 0)
    loader = headrace.DataLoader(dataset, 8, seed=1, num_workers=workers, collate_fn=list)
    with pytest.raises(ValueError, match="broken"):
        next(iter(loader))
    assert dataset.asked.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]


SAMPLES = 22


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
        return SAMPLES

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
    """Its share of SAMPLES samples."""

    def __iter__(self) -> Iterator[tuple[int, Numbers]]:
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for index in range(worker, SAMPLES, workers):
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
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(SAMPLES).tolist()


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


ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {"batch_size": 4, "shuffle": True},
    "by a sampler": {"batch_size": 4, "sampler": DrawnOrder(SAMPLES)},
    "one by one, by a sampler": {"batch_size": None, "sampler": DrawingSampler()},
    "in order": {"batch_size": 4},
}
PLANNED = ("python", "gathered", "native")


@pytest.mark.parametrize(
    ("workers", "kind", "seed", "order"),
    [
        *product([0], PLANNED, [None, 3], ORDERS),
        *one_in(5, product([2], PLANNED, [None, 3], ORDERS)),
    ],
)
def test_an_order_is_drawn_when_torch_draws_it(
    workers: int, kind: str, seed: int | None, order: str, dataset: ImageFolder
) -> None:
    datasets = {
        "python": Drawing(),
        "gathered": data.TensorDataset(torch.zeros(SAMPLES)),
        "native": dataset,
    }
    chosen: Any = data.Subset(datasets[kind], range(SAMPLES)) if kind == "native" else datasets[kind]

    def states(loader: Any) -> list[torch.Tensor]:
        """The states of the generator before an epoch, once it is started, and after the first batch."""
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


def test_explain_says_how_user_code_is_seeded() -> None:
    def text(**arguments: Any) -> str:
        return headrace.DataLoader(Drawing(), 4, **arguments).explain()

    label = "random numbers in Python: "
    assert label + "drawn from this process's generators, as in torch" in text(num_workers=0)
    assert label + "seeded once per worker, as in torch" in text(num_workers=2)
    assert label + "seeded for each sample by seed, epoch and index" in text(num_workers=2, seed=1)
    assert label + "not seeded" in text(num_workers=2, worker_kind="thread")
    assert label not in headrace.DataLoader(data.TensorDataset(torch.zeros(3))).explain()
