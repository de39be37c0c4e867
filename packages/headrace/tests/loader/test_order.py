"""Order and random parameters are those of torch's loader, or a function of seed, epoch and position."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, islice, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import data
from torch.utils.data import BatchSampler, RandomSampler, TensorDataset, WeightedRandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.order import Shuffled
from support.datasets import DrawnOrder, Made
from support.equal import same
from support.sampling import one_in

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


N = 30


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(9)


ORDERS: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "shuffled by a generator": lambda g: {"batch_size": 4, "shuffle": True, "generator": g},
    "torch's random": lambda g: {"batch_size": 4, "sampler": RandomSampler(range(N))},
    "torch's random by the loader's generator": lambda g: {
        "batch_size": 4,
        "sampler": RandomSampler(range(N), generator=g),
        "generator": g,
    },
    "torch's weighted": lambda g: {
        "batch_size": 4,
        "sampler": WeightedRandomSampler([1.0] * N, N, generator=g),
    },
    "drawn at once": lambda g: {"batch_size": 4, "sampler": DrawnOrder(N)},
    "batches": lambda g: {"batch_sampler": BatchSampler(RandomSampler(range(N), generator=g), 4, False)},
    "one by one": lambda g: {"batch_size": None, "sampler": RandomSampler(range(N), generator=g)},
    "in order": lambda g: {"batch_size": 4, "generator": g},
}


PLANS = ("native", "gathered", "python")


@pytest.fixture(scope="module")
def datasets(folder: Any) -> dict[str, Any]:
    """By plan; the last part of each sample is its index."""
    steps = transforms.Compose([transforms.Resize(8), transforms.CenterCrop(8), transforms.ToTensor()])
    images = ImageFolder(str(folder), steps)
    images.samples = [(path, number) for number, (path, _) in enumerate(images.samples)]
    gathered = TensorDataset(torch.zeros(N), torch.arange(N))
    return {"native": images, "gathered": gathered, "python": Made(lambda index: (0, index), N)}


def seen(
    kind: Any, dataset: Any, order: str, received: list[int], workers: list[int], **options: Any
) -> list[Any]:
    """By epoch, left after so many batches: the indices, and the generators' states before and after."""
    own = generator()
    torch.manual_seed(5)
    loader = kind(dataset, num_workers=max(workers), **ORDERS[order](own), **options)
    found: list[Any] = []
    for count, number in zip(received, workers, strict=True):
        loader.num_workers = number
        iterator = iter(loader)
        found.append(states(own))
        found.append([torch.as_tensor(batch[-1]).tolist() for batch in islice(iterator, count)])
        del iterator
        found.append(states(own))
    return found


def states(own: torch.Generator) -> tuple[list[int], list[int]]:
    return own.get_state().tolist(), torch.get_rng_state().tolist()


def assert_as_torch(
    dataset: Any,
    order: str,
    received: list[int],
    workers: list[int],
    *,
    seed: int | None = None,
    **options: Any,
) -> None:
    ours = seen(headrace.DataLoader, dataset, order, received, workers, seed=seed, **options)
    assert ours == seen(data.DataLoader, dataset, order, received, workers, **options)


WHOLE = 99


@pytest.mark.parametrize(("plan", "seed", "order"), one_in(5, product(PLANS, [None, 3], ORDERS)))
def test_orders_with_kept_workers_are_torchs(datasets: Any, plan: str, seed: int | None, order: str) -> None:
    assert_as_torch(datasets[plan], order, [WHOLE, 3, WHOLE], [2] * 3, seed=seed, persistent_workers=True)


@pytest.mark.parametrize("plan", PLANS)
def test_workers_that_are_started_in_another_way_are_kept_too(datasets: Any, plan: str) -> None:
    options: dict[str, Any] = {"persistent_workers": True, "multiprocessing_context": "fork"}
    assert_as_torch(datasets[plan], "shuffled by a generator", [WHOLE] * 3, [2] * 3, **options)


@pytest.mark.parametrize("plan", PLANS)
def test_an_epoch_without_workers_comes_between_as_in_torch(datasets: Any, plan: str) -> None:
    assert_as_torch(datasets[plan], "torch's random", [WHOLE, 2, WHOLE], [2, 0, 2], persistent_workers=True)


@pytest.mark.parametrize("plan", PLANS)
def test_new_workers_draw_a_seed_where_the_iterator_is_given_up(datasets: Any, plan: str) -> None:
    def drawn(kind: Any) -> list[Any]:
        torch.manual_seed(5)
        options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
        loader = kind(datasets[plan], **ORDERS["torch's random"](generator()), **options)
        list(loader)
        loader._iterator = None
        return [torch.as_tensor(batch[-1]).tolist() for batch in loader]

    assert drawn(headrace.DataLoader) == drawn(data.DataLoader)


@settings(max_examples=25, deadline=None)
@given(
    plan=st.sampled_from(PLANS),
    order=st.sampled_from(sorted(ORDERS)),
    epochs=st.lists(
        st.tuples(st.sampled_from([0, 1, 3, WHOLE]), st.sampled_from([0, 2])), min_size=1, max_size=4
    ),
    persistent=st.booleans(),
    seed=st.sampled_from([None, 3]),
)
def test_orders_and_generators_are_torchs_over_any_epochs(
    datasets: Any,
    plan: str,
    order: str,
    epochs: list[tuple[int, int]],
    persistent: bool,
    seed: int | None,
) -> None:
    options: dict[str, Any] = {}
    if persistent and any(workers for _, workers in epochs):
        options["persistent_workers"] = True
    received, workers = map(list, zip(*epochs, strict=True))
    assert_as_torch(datasets[plan], order, received, workers, seed=seed, **options)


@pytest.mark.parametrize(
    ("plan", "received", "seed", "order"),
    one_in(5, product(PLANS, [1, 4], [None, 3], [name for name in ORDERS if name != "drawn at once"])),
)
def test_an_epoch_of_kept_workers_resumes(
    datasets: Any, plan: str, received: int, seed: int | None, order: str
) -> None:
    def make() -> Any:
        options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "seed": seed}
        return headrace.DataLoader(datasets[plan], **ORDERS[order](generator()), **options)

    loader = make()
    list(loader)
    iterator = iter(loader)
    for _ in range(received):
        next(iterator)
    state = loader.state_dict()
    resumed = make()
    resumed.load_state_dict(state)
    rest = [torch.as_tensor(batch[-1]).tolist() for batch in iterator]
    assert [torch.as_tensor(batch[-1]).tolist() for batch in resumed] == rest


class Rows(data.Dataset[Any]):
    """Sample `index` is (index, index * scale), by a transform if there is one."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.scale = 1
        self.transform: Callable[[Any], Any] | None = None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        value = range(self.n)[index] * self.scale
        return index, value if self.transform is None else self.transform(value)


class Add:
    """A transform with an attribute to change."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, value: int) -> int:
        return value + self.amount


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# How the user says what the order is: arguments of the loader over n samples.
ANY_ORDER: dict[str, Callable[[int], dict[str, Any]]] = {
    "in order": lambda n: {},
    "shuffled": lambda n: {"shuffle": True},
    "by a generator": lambda n: {"shuffle": True, "generator": seeded(n)},
    "by a random sampler": lambda n: {"sampler": RandomSampler(range(n), True, 2 * n)},
    "by weights": lambda n: {"sampler": WeightedRandomSampler([1.0] * n, n, generator=seeded(n))},
    "by a list": lambda n: {"sampler": [*range(0, n, 2), 0]},
    "by Headrace's": lambda n: {"sampler": Shuffled(n)},
    "by a batch sampler": lambda n: {"batch_sampler": BatchSampler(RandomSampler(range(n)), 3, True)},
    "by a list of batches": lambda n: {"batch_sampler": [[0], [n - 1, 0], [-1]]},
}


# What is changed between epochs. Those of a sampler or batch sampler apply where it has the attribute.
CHANGES: dict[str, Callable[[Any], object]] = {
    "batch size": lambda loader: _change(loader.batch_sampler, "batch_size", 5),
    "drop_last": lambda loader: _change(loader.batch_sampler, "drop_last", True),
    "wrapped sampler": lambda loader: _change(loader.batch_sampler, "sampler", [2, 0, 1]),
    "generator of the sampler": lambda loader: _change(loader.sampler, "generator", seeded(1)),
    "replacement": lambda loader: _change(loader.sampler, "replacement", True),
    "generator of the loader": lambda loader: setattr(loader, "generator", seeded(2)),
    "sampler": lambda loader: object.__setattr__(loader, "sampler", [1, 1]),
    "batch sampler": lambda loader: object.__setattr__(loader, "batch_sampler", [[0, 0], [1]]),
    "wrapped batch sampler": lambda loader: object.__setattr__(
        loader, "batch_sampler", Twice(loader.batch_sampler)
    ),
    "length": lambda loader: _change(loader.dataset, "n", 4),
    "attribute": lambda loader: _change(loader.dataset, "scale", 7),
    "transform": lambda loader: _change(loader.dataset, "transform", Add(100)),
    "attribute of the transform": lambda loader: _change(
        getattr(loader.dataset, "transform", None), "amount", 200
    ),
    "collate function": lambda loader: setattr(loader, "collate_fn", list),
    "dataset": lambda loader: object.__setattr__(loader, "dataset", TensorDataset(torch.arange(100) * 3)),
}


class Twice:
    """The batches of another, and again."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Any:
        yield from self.sampler
        yield from self.sampler

    def __len__(self) -> int:
        return 2 * len(self.sampler)


def _change(holder: Any, name: str, value: Any) -> None:
    if hasattr(holder, name):
        setattr(holder, name, value)


def run(loader: Any, changes: list[str]) -> list[Any]:
    """(len(), batches) of an epoch, and of one after each change."""
    found = []
    for change in (None, *changes):
        if change is not None:
            CHANGES[change](loader)
        torch.manual_seed(4)
        try:
            found.append((len(loader), list(loader)))
        except (IndexError, ValueError, TypeError) as error:
            found.append((type(error), []))  # type: ignore[arg-type]
    return found


def samples_of(batch: Any) -> list[Any]:
    """The samples of a batch, collated by default or not."""
    columns = [column.tolist() for column in batch if isinstance(column, torch.Tensor)]
    if columns:
        return list(zip(*columns, strict=True))
    return [tuple(int(value) for value in sample) for sample in batch]


@settings(max_examples=150)
@given(
    n=st.integers(6, 12),
    order=st.sampled_from(sorted(ANY_ORDER)),
    batch_size=st.integers(1, 5),
    drop_last=st.booleans(),
    tensors=st.booleans(),
    changes=st.lists(st.sampled_from(sorted(CHANGES)), max_size=4),
)
def test_epochs_have_torchs_samples_whatever_is_changed_between_them(
    n: int, order: str, batch_size: int, drop_last: bool, tensors: bool, changes: list[str]
) -> None:
    def make(kind: Any) -> Any:
        given_order = ANY_ORDER[order](n)
        if "batch_sampler" not in given_order:
            given_order |= {"batch_size": batch_size, "drop_last": drop_last}
        rows: Any = TensorDataset(torch.arange(n), torch.arange(n) * 2) if tensors else Rows(n)
        return kind(rows, num_workers=0, **given_order)

    ours, theirs = run(make(headrace.DataLoader), changes), run(make(data.DataLoader), changes)
    if order != "shuffled":
        assert same(ours, theirs)
        return
    # The permutation is Headrace's own for as long as the sampler is the one that the loader made.
    for (our_length, our_batches), (length, batches) in zip(ours, theirs, strict=True):
        assert our_length == length
        mine, torchs = ([samples_of(batch) for batch in each] for each in (our_batches, batches))
        assert [len(batch) for batch in mine] == [len(batch) for batch in torchs]
        if not (drop_last or "drop_last" in changes or "replacement" in changes):
            assert sorted(chain(*mine)) == sorted(chain(*torchs))
