"""Changes of a loader or its dataset take effect at the next epoch, as in torch."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch.utils import data
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
    default_convert,
)
from torchvision.datasets import ImageFolder

import headrace
from headrace.build import StreamBuilder
from headrace.config import LoaderConfig
from headrace.errors import ConfigError
from headrace.order import Shuffled
from support.datasets import Numbers, Stream
from support.equal import same
from support.sampling import one_in
from support.stateful import CountedStream

N = 30


class Doubled(SequentialSampler):
    """Every index twice."""

    def __iter__(self) -> Iterator[int]:
        return iter([index for index in super().__iter__() for _ in range(2)])

    def __len__(self) -> int:
        return 2 * len(self.data_source)


def seeded(seed: int = 9) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbers_collate(samples: list[Any]) -> tuple[str, Any]:
    return "collated", default_collate(samples)


Loader = data.DataLoader[Any]
Change = Callable[[Any], object]


# Each is made to a loader after its first epoch.
OF_THE_BATCHES: dict[str, Change] = {
    "batch size": lambda loader: setattr(loader.batch_sampler, "batch_size", 8),
    "drop_last": lambda loader: setattr(loader.batch_sampler, "drop_last", True),
    "the batch sampler's sampler": lambda loader: setattr(loader.batch_sampler, "sampler", [5, 3, 1, 8, 8]),
    "the batch sampler's sampler, by Headrace's": lambda loader: setattr(
        loader.batch_sampler, "sampler", Shuffled(20)
    ),
    "the batch sampler": lambda loader: object.__setattr__(loader, "batch_sampler", [[0, 1], [2], [7, 7, 7]]),
    "the batch sampler, by a BatchSampler": lambda loader: object.__setattr__(
        loader, "batch_sampler", BatchSampler(range(3, 11), 3, drop_last=True)
    ),
    "batching, which is turned off": lambda loader: (
        object.__setattr__(loader, "batch_sampler", None),  # type: ignore[func-returns-value]
        setattr(loader, "collate_fn", default_convert),  # type: ignore[func-returns-value]
    ),
    "the sampler, which torch no longer looks at": lambda loader: object.__setattr__(
        loader, "sampler", [4, 2]
    ),
    "the loader's batch size, which torch no longer looks at": lambda loader: object.__setattr__(
        loader, "batch_size", 7
    ),
    "the loader's drop_last, which torch no longer looks at": lambda loader: object.__setattr__(
        loader, "drop_last", True
    ),
    "the sampler's class": lambda loader: setattr(loader.sampler, "__class__", Doubled),
    "the sampler's data source": lambda loader: setattr(loader.sampler, "data_source", range(11)),
    "the loader's generator": lambda loader: setattr(loader, "generator", seeded()),
    "the collate function": lambda loader: setattr(loader, "collate_fn", numbers_collate),
}


OF_A_SHUFFLE: dict[str, Change] = {
    "the sampler's generator": lambda loader: setattr(loader.sampler, "generator", seeded()),
    "the batch sampler's sampler's generator": lambda loader: setattr(
        loader.batch_sampler.sampler, "generator", seeded()
    ),
    "replacement": lambda loader: setattr(loader.sampler, "replacement", True),
}


def epochs_of(loader: Loader, change: Change, seed: int = 3) -> list[Any]:
    """len() and batches of an epoch before and two after `change`; and torch's generator at the end."""
    torch.manual_seed(seed)
    found: list[Any] = [len(loader), list(loader)]
    change(loader)
    for _ in range(2):
        found += [len(loader), list(loader)]
    return [*found, torch.get_rng_state()]


# The caller's process reads what is changed, with workers and without.
@pytest.mark.parametrize(
    ("change", "workers"),
    [*((change, 0) for change in OF_THE_BATCHES), *one_in(3, ((change, 2) for change in OF_THE_BATCHES))],
)
def test_batches_follow_a_changed_loader(change: str, workers: int) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "num_workers": workers}
    expected = epochs_of(data.DataLoader(Numbers(N), **settings), OF_THE_BATCHES[change])
    assert same(epochs_of(headrace.DataLoader(Numbers(N), **settings), OF_THE_BATCHES[change]), expected)


@pytest.mark.parametrize("change", OF_THE_BATCHES)
@pytest.mark.parametrize("kind", ["native", "gathered"])
def test_native_batches_follow_a_changed_loader(dataset: ImageFolder, kind: str, change: str) -> None:
    rows: Any = dataset if kind == "native" else TensorDataset(torch.arange(N), torch.rand(N, 3))
    loader = headrace.DataLoader(rows, batch_size=4, num_workers=0)
    assert (loader.plan().native if kind == "native" else loader.plan().gather) is not None
    expected = epochs_of(data.DataLoader(rows, batch_size=4), OF_THE_BATCHES[change])
    assert same(epochs_of(loader, OF_THE_BATCHES[change]), expected)


@pytest.mark.parametrize("change", OF_A_SHUFFLE)
def test_a_changed_random_sampler_is_torchs(change: str) -> None:
    ours = headrace.DataLoader(Numbers(N), batch_size=4, shuffle=True, num_workers=0)
    theirs = data.DataLoader(Numbers(N), batch_size=4, shuffle=True)
    for loader in (ours, theirs):
        OF_A_SHUFFLE[change](loader)
    for _ in range(2):
        torch.manual_seed(5)
        expected = list(theirs)
        torch.manual_seed(5)
        assert len(ours) == len(theirs)
        assert same(list(ours), expected)
    ours.sampler.generator = None  # type: ignore[attr-defined]
    ours.sampler.replacement = False  # type: ignore[attr-defined]
    assert "order: Shuffled of 30" in ours.explain()


@pytest.mark.parametrize("name", ["batch size", "drop_last"])
def test_a_shuffled_order_stays_headraces_in_batches_of_another_size(name: str) -> None:
    ours = headrace.DataLoader(Numbers(N), batch_size=4, shuffle=True, seed=3, num_workers=0)
    before = [index for batch in ours for index in batch.tolist()]
    OF_THE_BATCHES[name](ours)
    ours.set_epoch(0)
    after = [index for batch in ours for index in batch.tolist()]
    assert after == before[: len(after)]
    assert len(after) == (30 if name == "batch size" else 28)


@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_that_are_not_batched_follow_a_changed_sampler(shuffle: bool) -> None:
    for change in (
        lambda loader: object.__setattr__(loader, "sampler", [5, 3, 3]),
        lambda loader: object.__setattr__(loader, "batch_sampler", [[1, 2], [3]]),
        lambda loader: setattr(loader.sampler, "data_source", range(7)),
    ):
        found = []
        for make in (data.DataLoader, headrace.DataLoader):
            loader: Any = make(Numbers(N), batch_size=None, shuffle=shuffle, num_workers=0)
            change(loader)
            found.append((len(loader), sorted(map(str, loader)) if shuffle else list(loader)))
        assert same(found[1], found[0])


def test_another_dataset_and_attribute_of_it_take_effect_in_workers() -> None:
    def change(loader: Loader) -> None:
        object.__setattr__(loader, "dataset", Numbers(N, 10))
        loader.dataset.n = 9  # type: ignore[attr-defined]

    settings: dict[str, Any] = {"batch_size": 4, "num_workers": 2}
    expected = epochs_of(data.DataLoader(Numbers(N), **settings), change)
    assert same(epochs_of(headrace.DataLoader(Numbers(N), **settings), change), expected)


@pytest.mark.parametrize("changes", [(0, 2, 0), (2, 0, 1)], ids=str)
def test_native_threads_follow_a_changed_number_of_workers(
    dataset: ImageFolder, changes: tuple[int, ...]
) -> None:
    expected = list(data.DataLoader(dataset, batch_size=4))
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=changes[0])
    unfinished = [iter(loader)]
    received = [next(unfinished[0])]
    for workers in changes[1:]:
        loader.num_workers = workers
        assert same(list(loader), expected)
        unfinished.append(iter(loader))
        assert same(next(unfinished[-1]), expected[0])
    assert same([*received, *unfinished[0]], expected)
    decoded = sum(loader.stats().decoded_by.values())
    assert decoded >= 3 * len(dataset), "by the threads of each number"


@pytest.mark.parametrize("name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset"])
def test_what_torch_refuses_to_set_is_refused(name: str) -> None:
    for make in (data.DataLoader, headrace.DataLoader):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after"):
            setattr(make(Numbers(N)), name, getattr(make(Numbers(N)), name))


class Sized(Stream):
    def __len__(self) -> int:
        return self.count


class SizedWithState(CountedStream):
    def __len__(self) -> int:
        return self.n


OF_A_STREAM: dict[str, Change] = {
    "batch size": OF_THE_BATCHES["batch size"],
    "the batch sampler": OF_THE_BATCHES["the batch sampler"],
    "the batch sampler's sampler": OF_THE_BATCHES["the batch sampler's sampler"],
    "drop_last": lambda loader: object.__setattr__(loader, "drop_last", True),
    "the loader's batch size, which len() alone looks at": lambda loader: object.__setattr__(
        loader, "batch_size", 7
    ),
    "the collate function": OF_THE_BATCHES["the collate function"],
}


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
@pytest.mark.parametrize(
    ("kind", "change", "workers"),
    [
        *product((SizedWithState, Sized), OF_A_STREAM, (0,)),
        *one_in(5, product((SizedWithState, Sized), OF_A_STREAM, (1,))),
    ],
)
def test_streams_follow_a_changed_loader(kind: Any, change: str, workers: int) -> None:
    settings: dict[str, Any] = {"batch_size": 4, "num_workers": workers}
    expected = epochs_of(data.DataLoader(kind(10), **settings), OF_A_STREAM[change])
    assert same(epochs_of(headrace.DataLoader(kind(10), **settings), OF_A_STREAM[change]), expected)


@pytest.mark.parametrize("change", ["batch size", "drop_last", "the batch sampler's sampler"])
def test_a_change_in_mid_epoch_does_not_move_the_saved_place(change: str) -> None:
    def make() -> headrace.DataLoader:
        return headrace.DataLoader(Numbers(N), batch_size=4, shuffle=True, seed=2, num_workers=0)

    first, whole = make(), list(make())
    batches = iter(first)
    next(batches), next(batches)
    OF_THE_BATCHES[change](first)
    second = make()
    second.load_state_dict(first.state_dict())
    assert same(list(second), whole[2:])


def test_a_state_is_refused_where_another_sampler_decides_by_then() -> None:
    loader = headrace.DataLoader(Numbers(N), batch_size=4, num_workers=0)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    object.__setattr__(loader, "batch_sampler", BatchSampler(range(9, 0, -1), 2, drop_last=False))
    with pytest.raises(headrace.ConfigError, match=r"order: .*Sequential of 30.*BatchSampler of 5"):
        iter(loader)
    with pytest.raises(headrace.ConfigError, match=r"order: .*Sequential of 30.*BatchSampler of 5"):
        loader.load_state_dict(state)


def test_a_changed_sampler_resumes_where_its_state_was_saved() -> None:
    def make() -> headrace.DataLoader:
        loader = headrace.DataLoader(Numbers(N), batch_size=4, shuffle=True, num_workers=0)
        loader.sampler.generator = seeded(4)  # type: ignore[attr-defined]
        loader.batch_sampler.batch_size = 3  # type: ignore[union-attr]
        return loader

    first, whole = make(), list(make())
    batches = iter(first)
    next(batches), next(batches)
    second = make()
    second.load_state_dict(first.state_dict())
    assert same(list(second), whole[2:])


def test_a_state_names_the_dataset_as_it_is_in_the_epoch() -> None:
    loader = headrace.DataLoader(Numbers(N), batch_size=4, num_workers=0)
    list(loader)
    loader.state_dict()
    loader.dataset.n = 9  # type: ignore[attr-defined]
    next(iter(loader))
    assert loader.state_dict()["dataset"].endswith("Numbers of 9")


def test_the_first_epochs_changes_work_with_a_random_sampler_of_the_users() -> None:
    def make(kind: Any) -> Any:
        torch.manual_seed(0)
        loader = kind(Numbers(N), 4, sampler=RandomSampler(range(N)), num_workers=0)
        loader.sampler.generator = seeded(2)
        loader.batch_sampler.drop_last = True
        return loader

    assert same(list(make(headrace.DataLoader)), list(make(data.DataLoader)))


def test_an_assigned_seed_takes_effect_at_the_next_epoch() -> None:
    def make(seed: int | None) -> headrace.DataLoader:
        return headrace.DataLoader(Numbers(N), batch_size=4, shuffle=True, seed=seed, num_workers=0)

    def second(seed: int) -> list[Any]:
        loader = make(seed)
        loader.set_epoch(1)
        return list(loader)

    for first in (1, None):
        loader = make(first)
        batches = iter(loader)
        received = [next(batches)]
        loader.seed = 2
        if first is not None:
            assert same([*received, *batches], list(make(first)))
        assert "seed 2" in loader.explain()
        assert same(list(loader), second(2))
    loader.seed = None
    orders = []  # type: ignore[var-annotated]
    for _ in range(2):
        torch.manual_seed(len(orders))
        loader.set_epoch(1)
        orders.append(list(loader))
    assert not same(*orders)
    loader.seed = -1
    with pytest.raises(headrace.ConfigError, match=r"seed \(-1\) must be an int"):
        iter(loader)


def test_a_state_after_the_seed_was_changed_in_mid_epoch_resumes_with_both() -> None:
    def make(seed: int) -> headrace.DataLoader:
        return headrace.DataLoader(Numbers(N), batch_size=4, shuffle=True, seed=seed, num_workers=0)

    loader = make(1)
    batches = iter(loader)
    next(batches)
    loader.seed = 2
    resumed = make(2)
    resumed.load_state_dict(loader.state_dict())
    assert same(list(resumed), list(batches))
    assert same(list(resumed), list(loader))


def test_an_assigned_device_and_residence_take_effect_at_the_next_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loader = headrace.DataLoader(TensorDataset(torch.arange(9)), batch_size=4, device="cpu")
    list(loader)
    assert "the device is the CPU" in loader.workers_text()
    loader.resident = False
    list(loader)
    assert "not resident: resident=False" in loader.workers_text()
    builder, config = StreamBuilder(), LoaderConfig.of(loader)
    monkeypatch.setattr("headrace.build.resolve_device", lambda device: device)
    meta = replace(config, device=torch.device("meta"), resident=True)
    monkeypatch.setattr("headrace.device.resident.free_memory", lambda _: 1 << 30)
    moved = builder.plan(meta).gather
    assert moved is not None
    assert moved.tensors[0].device.type == "meta"


def test_what_the_constructor_takes_may_be_assigned() -> None:
    loader = headrace.DataLoader(TensorDataset(torch.arange(9)), batch_size=4, num_workers=2)
    loader.device = "cpu"  # type: ignore[assignment]
    loader.num_workers = "auto"  # type: ignore[assignment]
    loader.pin_memory = "auto"  # type: ignore[assignment]
    assert (loader.device, loader.num_workers) == (torch.device("cpu"), 0)
    assert isinstance(loader.pin_memory, bool)
    assert LoaderConfig.of(loader).workers_given is None
    assert [batch.tolist() for (batch,) in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    for name, value in {"device": "nowhere", "num_workers": "all", "pin_memory": "yes"}.items():
        with pytest.raises(headrace.ConfigError, match=rf"{name} \('{value}'\)"):
            setattr(loader, name, value)


def fail(worker: int) -> None:
    raise RuntimeError(f"worker {worker} can't start")


def look(worker: int) -> None:
    info = data.get_worker_info()
    assert info is not None
    assert info.id == worker


ATTRIBUTES = (
    *("dataset", "num_workers", "prefetch_factor", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "generator", "persistent_workers", "pin_memory_device", "in_order"),
)


def made_again(loader: headrace.DataLoader[Any]) -> headrace.DataLoader[Any]:
    """Makes another loader of the attributes of one, as Lightning does."""
    return headrace.DataLoader(
        batch_sampler=loader.batch_sampler, **{name: getattr(loader, name) for name in ATTRIBUTES}
    )


def given(loader: headrace.DataLoader[Any]) -> tuple[int | None, int | None]:
    """Workers and prefetch factor, where they weren't left open."""
    config = LoaderConfig.of(loader)
    return config.workers_given, config.prefetch_factor_given


def test_numbers_that_were_left_open_read_as_ints_and_stay_open() -> None:
    loader = headrace.DataLoader(Numbers(30))
    assert isinstance(loader.num_workers, int)
    assert (loader.num_workers >= 1, loader.prefetch_factor) == (True, 2)
    for other in (made_again(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert given(other) == (None, None)
        assert (other.num_workers, other.prefetch_factor) == (loader.num_workers, 2)
    rows = headrace.DataLoader(TensorDataset(torch.arange(3)))
    assert (rows.num_workers, rows.prefetch_factor) == (0, None)
    torchs = data.DataLoader(
        Numbers(30), num_workers=loader.num_workers, prefetch_factor=loader.prefetch_factor
    )
    assert torchs.num_workers == loader.num_workers


def test_numbers_that_were_given_stay_given() -> None:
    loader = made_again(headrace.DataLoader(Numbers(30), num_workers=3, prefetch_factor=5))
    assert given(loader) == (3, 5)
    loader = headrace.DataLoader(Numbers(30))
    loader.num_workers, loader.prefetch_factor = 1, 4
    assert given(loader) == (1, 4)


@pytest.mark.parametrize("kind", ["native", "gathered", "thread"])
def test_a_worker_init_fn_without_workers_is_reported_once(kind: str, dataset: ImageFolder) -> None:
    rows = {"native": dataset, "gathered": TensorDataset(torch.arange(9)), "thread": Numbers(30)}[kind]
    settings: dict[str, Any] = {"worker_kind": "thread"} if kind == "thread" else {}
    loader = headrace.DataLoader(rows, num_workers=1, worker_init_fn=fail, **settings)
    assert "worker_init_fn: not called, as " in loader.explain()
    with pytest.warns(UserWarning, match="worker_init_fn is not called: .*no worker processes") as caught:
        list(loader)
    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)
        list(headrace.DataLoader(rows, num_workers=0, worker_init_fn=fail, **settings))  # nor does torch


def test_a_worker_init_fn_runs_in_workers_and_its_error_surfaces() -> None:
    assert len(list(headrace.DataLoader(Numbers(30), num_workers=2, worker_init_fn=look))) == 30
    with pytest.raises(RuntimeError, match=r"worker [01] can't start"):
        list(headrace.DataLoader(Numbers(30), num_workers=2, worker_init_fn=fail))


def test_rank_auto_shares_what_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    sampler: Any = DistributedSampler(Numbers(30), 2, 1, shuffle=False)
    loader = headrace.DataLoader(Numbers(30), 5, sampler=sampler, rank="auto", num_workers=0)
    assert [batch.tolist() for batch in loader] == [list(range(1 + 10 * i, 10 * i + 11, 2)) for i in range(3)]
    assert "ranks: left to the sampler; rank='auto' changes nothing there" in loader.explain()
    assert [int(sample) for sample in headrace.DataLoader(Stream(3), rank="auto")] == [0, 1, 2]
    assert len(headrace.DataLoader(Numbers(30), 5, rank="auto")) == 3
    with pytest.raises(ConfigError, match="the epoch can't be shared among ranks"):
        headrace.DataLoader(Numbers(30), 5, sampler=sampler, rank=1, world_size=2)
