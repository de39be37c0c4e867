"""A loader resumes where its state was saved, today's and those of earlier versions."""

from __future__ import annotations

import copy
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler
from torchvision.datasets import ImageFolder

import headrace
from headrace.order import Endless, LocalShuffled, RepeatedAugmentation, Shuffled, Weighted
from support.equal import same
from support.golden_states import LOADERS, is_by_workers, resumed
from support.noisy_dataset import Noisy
from support.sampling import one_in
from support.stateful import CountedStream, IteratedSampler, StatefulSampler

pytestmark = pytest.mark.filterwarnings(
    "ignore:PlainStream had no state_dict", "ignore:This DataLoader will create"
)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(9)


N = 30
KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": dict,
    "shuffled": lambda: {"shuffle": True},
    "shuffled, seed": lambda: {"shuffle": True, "seed": 5},
    "shuffled by a generator": lambda: {"shuffle": True, "generator": generator()},
    "without the rest": lambda: {"shuffle": True, "drop_last": True},
    "one of two ranks": lambda: {"shuffle": True, "rank": 1, "world_size": 2},
    "repeated": lambda: {"sampler": RepeatedAugmentation(N, 3)},
    "weighted": lambda: {"sampler": Weighted(np.linspace(0.1, 1, N), 50), "seed": 3},
    "local": lambda: {"sampler": LocalShuffled([0, 7, 15, N], 12)},
    "torch's weighted": lambda: {"sampler": WeightedRandomSampler([0.1] * 5 + [1.0] * (N - 5), 40)},
    "torch's random": lambda: {"sampler": RandomSampler(range(N), True, 40, generator=generator())},
    "torch's distributed": lambda: {"sampler": DistributedSampler(range(N), 2, 1, seed=4)},  # type: ignore[arg-type]
    "a list": lambda: {"sampler": [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]},
    "stateful": lambda: {"sampler": StatefulSampler(N)},
    "iterators with a state": lambda: {"sampler": IteratedSampler()},
    "batches": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(N)), 4, False), "batch_size": 1},
    "lists of batches": lambda: {"batch_sampler": [[0, 1], [5], [7, 7, 7], [2]], "batch_size": 1},
}


def run(make: Callable[[], Any], stop: int, epochs: int = 2, **other: Any) -> tuple[list[Any], list[Any]]:
    """Batches of `epochs` epochs without a break; and those of a loader that is given up after `stop` batches
    and resumed by another one, the state having gone through a file."""
    torch.manual_seed(1)
    whole = make()
    expected = [batch for _ in range(epochs) for batch in whole]
    torch.manual_seed(1)
    first, got, states = make(), [], b""
    for _ in range(epochs):
        for batch in first:
            got.append(batch)
            if len(got) == stop:
                break
        if len(got) == stop:
            break
    file = io.BytesIO()
    torch.save((first.state_dict(), torch.get_rng_state()), file)
    file.seek(0)
    torch.manual_seed(77)
    second = make(**other)
    state, states = torch.load(file, weights_only=False)
    second.load_state_dict(state)
    torch.set_rng_state(states)
    begun = state["epoch"]
    for _ in range(begun, epochs):
        got += list(second)
    return expected, got


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [1, 3, 9])
def test_native_epochs_resume_exactly(pictures: ImageFolder, kind: str, stop: int) -> None:
    def make(workers: int = 2) -> headrace.DataLoader:
        return headrace.DataLoader(pictures, num_workers=workers, **{"batch_size": 4, **KINDS[kind]()})

    assert make().plan().native is not None
    expected, got = run(make, stop, workers=1)
    assert same(got, expected)


# Each kind in the caller's process, and some by turns into worker processes and from them.
CHANGES = [
    *((kind, 0, 0) for kind in KINDS),
    *one_in(3, ((kind, *((0, 2), (2, 1))[i % 2]) for i, kind in enumerate(KINDS))),
]


@pytest.mark.parametrize(("kind", "workers", "others"), CHANGES)
def test_python_epochs_resume_exactly(kind: str, workers: int, others: int) -> None:
    def make(workers: int = workers) -> headrace.DataLoader:
        options = {"batch_size": 4, "seed": 5, **KINDS[kind]()}
        return headrace.DataLoader(Noisy(N), num_workers=workers, **options)

    assert make().plan().native is None
    expected, got = run(make, 5, workers=others)
    assert same(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_python_epochs_without_a_seed_go_on_with_the_same_samples(kind: str) -> None:
    def make() -> headrace.DataLoader:
        return headrace.DataLoader(Noisy(N), num_workers=0, **{"batch_size": 4, **KINDS[kind]()})

    expected, got = run(make, 3, epochs=1)
    assert same([batch[0] for batch in got], [batch[0] for batch in expected])


@pytest.mark.parametrize("kind", KINDS)
def test_the_length_is_that_of_a_whole_epoch_wherever_an_epoch_resumes(kind: str) -> None:
    def make() -> headrace.DataLoader:
        return headrace.DataLoader(Noisy(N), num_workers=0, **{"batch_size": 4, **KINDS[kind]()})

    whole = len(list(make()))
    first, second = make(), make()
    batches = iter(first)
    next(batches)
    next(batches)
    second.load_state_dict(first.state_dict())
    resumed = iter(second)
    assert [len(first), len(batches), len(second), len(resumed)] == [whole] * 4
    assert (len(list(resumed)), len(second)) == (whole - 2, whole)


@pytest.mark.parametrize("stop", [4, 30, 31])
def test_unbatched_samples_resume_exactly(stop: int) -> None:
    expected, got = run(lambda: headrace.DataLoader(Noisy(N), None, True, num_workers=0, seed=5), stop)
    assert same(got, expected)
    expected, got = run(lambda: headrace.DataLoader(CountedStream(N), None, num_workers=0), stop)
    assert same(got, expected)


def test_persistent_workers_resume_and_start_over_in_the_next_epoch() -> None:
    def make() -> headrace.DataLoader:
        return headrace.DataLoader(CountedStream(24), batch_size=4, num_workers=2, persistent_workers=True)

    expected, got = run(make, 3, epochs=3)
    assert same(got, expected)


def test_endless_orders_resume_exactly(pictures: ImageFolder) -> None:
    def batches(loader: headrace.DataLoader, count: int) -> list[Any]:
        return [batch for batch, _ in zip(loader, range(count), strict=False)]

    def make() -> headrace.DataLoader:
        return headrace.DataLoader(pictures, 8, sampler=Endless(Shuffled(N)), seed=2, num_workers=1)

    expected = batches(make(), 12)
    first, second = make(), make()
    got = batches(first, 7)
    second.load_state_dict(first.state_dict())
    # zip() has taken an eighth batch, which it could not give out.
    assert same(got + expected[7:8] + batches(second, 4), expected)
    with pytest.raises(TypeError, match="no end"):
        len(first)


def test_a_state_counts_what_was_received_not_what_was_prefetched(pictures: ImageFolder) -> None:
    loader = headrace.DataLoader(pictures, batch_size=4, num_workers=2, prefetch_factor=4)
    iterator = iter(loader)
    assert loader.state_dict()["position"] == 0
    for received in range(1, 4):
        next(iterator)
        assert loader.state_dict()["position"] == 4 * received
    del iterator
    assert loader.state_dict()["position"] == 12


def test_between_epochs_a_state_is_the_next_epochs(pictures: ImageFolder) -> None:
    loader = headrace.DataLoader(pictures, batch_size=20, num_workers=1, seed=1)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 0)
    iterator = iter(loader)
    next(iterator), next(iterator)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 30)
    assert next(iterator, None) is None
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)
    again = headrace.DataLoader(pictures, batch_size=20, num_workers=1, seed=1)
    again.load_state_dict(loader.state_dict())
    assert same(list(again), list(loader))


def test_set_epoch_keeps_the_place_in_its_own_epoch_only(pictures: ImageFolder) -> None:
    def make() -> headrace.DataLoader:
        return headrace.DataLoader(pictures, batch_size=4, shuffle=True, num_workers=1, seed=1)

    first = make()
    next(iter(first))
    for epoch, left in ((0, 7), (1, 8)):
        second = make()
        second.load_state_dict(first.state_dict())
        assert second.state_dict() == first.state_dict()
        second.set_epoch(epoch)
        assert len(list(second)) == left


def test_batch_size_may_change(pictures: ImageFolder) -> None:
    def labels(loader: Any) -> list[int]:
        return [index for batch in loader for index in batch[0].tolist()]

    for settings in ({"shuffle": True, "seed": 1}, {"sampler": [5, 3, 1, 8, 8, 2, 0, 9, 7, 6]}):
        whole = labels(headrace.DataLoader(Noisy(N), 3, num_workers=0, **settings))
        first = headrace.DataLoader(Noisy(N), 3, num_workers=0, **settings)
        got = next(iter(first))[0].tolist()
        second = headrace.DataLoader(Noisy(N), 5, num_workers=0, **settings)
        second.load_state_dict(first.state_dict())
        assert got + labels(second) == whole


def test_skipped_samples_move_the_place_too() -> None:
    class Broken(Noisy):
        def __getitem__(self, index: int) -> Any:
            if index in (2, 4, 5, 6, 7, 9):
                raise ValueError("broken")
            return super().__getitem__(index)

    def make(**other: Any) -> headrace.DataLoader:
        return headrace.DataLoader(Broken(), batch_size=4, on_error="skip", num_workers=0, seed=5, **other)

    for stop in (1, 2):
        expected, got = run(make, stop, epochs=1)
        assert same(got, expected)


def test_a_stateful_sampler_resumes_without_starting_over() -> None:
    sampler = StatefulSampler(N)
    first = headrace.DataLoader(Noisy(N), batch_size=4, sampler=sampler, num_workers=0)
    iterator = iter(first)
    next(iterator), next(iterator)
    again = StatefulSampler(N)
    second = headrace.DataLoader(Noisy(N), batch_size=4, sampler=again, num_workers=0)
    second.load_state_dict(first.state_dict())
    list(second)
    assert again.given == N - 8


def test_resuming_in_a_huge_epoch_skips_nothing() -> None:
    class Huge(Noisy):
        def __getitem__(self, index: int) -> Any:
            return index

    def make() -> headrace.DataLoader:
        return headrace.DataLoader(Huge(10**12), batch_size=100, shuffle=True, seed=0, num_workers=0)

    state = {**make().state_dict(), **dict.fromkeys(("position", "_num_yielded"), 10**12 - 250)}
    state.update(order_seed=0, order_epoch=0, random_seed=0, random_epoch=0)
    loader = make()
    loader.load_state_dict(state)
    assert [len(batch) for batch in loader] == [100, 100, 50]
    assert len(loader) == 10**10


def test_states_are_plain(pictures: ImageFolder) -> None:
    loader = headrace.DataLoader(pictures, batch_size=4, shuffle=True, num_workers=1)
    before = loader.state_dict()
    next(iter(loader))
    after = loader.state_dict()
    assert before.keys() == after.keys()
    assert json.loads(json.dumps(after)).keys() == after.keys()
    assert copy.deepcopy(after) == after


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torchs_distributed_checkpoint_keeps_a_loader(pictures: ImageFolder, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    def make() -> headrace.DataLoader:
        return headrace.DataLoader(pictures, batch_size=4, shuffle=True, num_workers=1)

    first, second = make(), make()
    iterator = iter(first)
    next(iterator)
    dcp.save({"loader": first}, checkpoint_id=str(tmp_path), no_dist=True)
    dcp.load({"loader": second}, checkpoint_id=str(tmp_path), no_dist=True)
    assert same(list(second), list(iterator))


REFUSED: dict[str, tuple[Callable[[], headrace.DataLoader], str]] = {
    "another length": (lambda: headrace.DataLoader(Noisy(24), 4, True, seed=1), "Noisy of 23.*Noisy of 24"),
    "another class": (lambda: headrace.DataLoader(range(23), 4, True, seed=1), "dataset: .*Noisy.*range"),  # type: ignore[arg-type]
    "another order": (lambda: headrace.DataLoader(Noisy(), 4, seed=1), "order: .*Shuffled.*Sequential"),
    "another sampler": (
        lambda: headrace.DataLoader(Noisy(), 4, sampler=[1, 2], seed=1),
        "order: .*sampler builtins.list of 2",
    ),
    "another seed": (lambda: headrace.DataLoader(Noisy(), 4, True, seed=2), "seed: the state has 1.* 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_states_of_others_are_refused(name: str) -> None:
    state = headrace.DataLoader(Noisy(), 4, True, seed=1).state_dict()
    make, message = REFUSED[name]
    with pytest.raises(headrace.ConfigError, match=message):
        make().load_state_dict(state)


def test_states_of_other_files_are_refused(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    for path in folder.rglob("*.jpg"):
        target = moved / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)
    state = headrace.DataLoader(ImageFolder(str(folder))).state_dict()
    headrace.DataLoader(ImageFolder(str(moved))).load_state_dict(state)
    first = sorted(moved.rglob("*.jpg"))[0]
    first.rename(first.with_name("renamed.jpg"))
    with pytest.raises(headrace.ConfigError, match=r"dataset: the state has .* files "):
        headrace.DataLoader(ImageFolder(str(moved))).load_state_dict(state)


def test_a_state_that_accelerate_moved_back_is_refused() -> None:
    """Accelerate's dispatcher of two ranks is a batch ahead of the script, and lowers this number by one."""
    loader = headrace.DataLoader(Noisy(), 4)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict({**state})
    with pytest.raises(headrace.ConfigError, match="dispatch_batches=True"):
        loader.load_state_dict({**state, "_num_yielded": state["_num_yielded"] - 1})


def test_what_has_no_place_says_so() -> None:
    with pytest.raises(headrace.ConfigError, match="in_order=False"):
        headrace.DataLoader(Noisy(), in_order=False, num_workers=2).state_dict()
    with pytest.raises(headrace.ConfigError, match=r"isn't a state .* None"):
        headrace.DataLoader(Noisy()).load_state_dict({})


@pytest.mark.parametrize("by_sampler", [False, True])
def test_a_state_from_before_the_first_batch(by_sampler: bool) -> None:
    def loader() -> headrace.DataLoader:
        sampler = RandomSampler(rows) if by_sampler else None
        return headrace.DataLoader(rows, 3, shuffle=None if by_sampler else True, sampler=sampler)

    rows = data.TensorDataset(torch.arange(10))
    first = loader()
    batches = iter(first)
    state = first.state_dict()
    expected = [batch[0].tolist() for batch in batches]
    torch.manual_seed(99)
    second = loader()
    second.load_state_dict(state)
    assert [batch[0].tolist() for batch in second] == expected


def test_one_ranks_state_is_every_ranks() -> None:
    rows = data.TensorDataset(torch.arange(10))
    loaders = [
        headrace.DataLoader(rows, 2, sampler=DistributedSampler(rows, 2, rank), num_workers=0)
        for rank in range(2)
    ]
    batches = iter(loaders[0])
    next(batches)
    loaders[1].load_state_dict(loaders[0].state_dict())
    whole = list(headrace.DataLoader(rows, 2, sampler=DistributedSampler(rows, 2, 1), num_workers=0))
    assert [batch[0].tolist() for batch in loaders[1]] == [batch[0].tolist() for batch in whole[1:]]


def test_negative_indices_into_a_dataset_without_len() -> None:
    class Tens(data.Dataset[int]):
        def __getitem__(self, index: int) -> int:
            return 10 * index

    loader = headrace.DataLoader(Tens(), sampler=[0, -1], num_workers=0)
    assert [int(batch) for batch in loader] == [0, -10]


@pytest.mark.parametrize("loaded", [False, True])
def test_a_copy_of_a_loader_has_a_place_of_its_own_that_starts_at_the_originals(loaded: bool) -> None:
    def make() -> headrace.DataLoader:
        return headrace.DataLoader(Noisy(N), 4, shuffle=True, num_workers=0, seed=5)

    first, expected = make(), list(make())
    batches = iter(first)
    next(batches)
    if loaded:
        state = first.state_dict()
        first = make()
        first.load_state_dict(state)
    before = first.state_dict()
    other = copy.copy(first)
    assert other.state_dict() == before
    others_batches = iter(other)
    next(others_batches), next(others_batches), next(others_batches)
    assert first.state_dict() == before
    moved = other.state_dict()
    if loaded:
        batches = iter(first)
    next(batches)
    assert other.state_dict() == moved
    second = make()
    second.load_state_dict(first.state_dict())
    assert same(list(second), expected[2:])


GOLDEN = Path(__file__).parents[1] / "golden"
SAVED: dict[str, dict[str, Any]] = json.loads(lzma.decompress((GOLDEN / "states.json.xz").read_bytes()))


BY_WORKERS = [name for name in SAVED if is_by_workers(name)]
IN_THE_CALLER = [name for name in SAVED if name not in BY_WORKERS]


# States of maps don't depend on who makes the samples; those of streams do.
@pytest.mark.parametrize(
    "name",
    [
        *IN_THE_CALLER,
        *(name for name in BY_WORKERS if "stream" in name),
        *one_in(4, (name for name in BY_WORKERS if "stream" not in name)),
    ],
)
def test_states_of_earlier_versions_resume(name: str) -> None:
    for place, entry in SAVED[name].items():
        assert resumed(LOADERS[name], entry) == entry["rests"], place


# The caller's process saves states, with workers and without.
@pytest.mark.parametrize("name", [*IN_THE_CALLER, *one_in(8, BY_WORKERS)])
def test_states_of_earlier_versions_are_the_same_when_they_are_saved_again(name: str) -> None:
    """States are saved as they were loaded, and once their epoch has started."""
    for place, entry in SAVED[name].items():
        loader = LOADERS[name](0)
        loader.load_state_dict(copy.deepcopy(entry["state"]))
        unstarted = loader.state_dict()
        assert resumed(LOADERS[name], {**entry, "state": unstarted}) == entry["rests"], place
        if place == "between epochs":
            continue
        iterator = iter(loader)
        started = loader.state_dict()
        del iterator
        assert resumed(LOADERS[name], {**entry, "state": started}) == entry["rests"], place
