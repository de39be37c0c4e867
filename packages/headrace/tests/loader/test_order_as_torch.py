"""Over several epochs an order of the user's, and all generators, are torch's, whoever makes the samples."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
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
from support.sampling import one_in

N = 30

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Numbers(data.Dataset[Any]):
    """A dataset that runs as Python."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, int]:
        return 0, index


class Draws(data.Sampler[int]):
    """Draws from torch's global generator as soon as it is started."""

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Any:
        return iter(torch.randperm(N).tolist())


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
    "drawn at once": lambda g: {"batch_size": 4, "sampler": Draws()},
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
    return {"native": images, "gathered": gathered, "python": Numbers()}


def seen(
    kind: Any, dataset: Any, order: str, received: list[int], workers: list[int], **options: Any
) -> list[Any]:
    """Of each epoch, left after so many batches: the indices, and the generators' states before and after."""
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


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("seed", [None, 3])
def test_orders_with_kept_workers_are_torchs(datasets: Any, plan: str, order: str, seed: int | None) -> None:
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


@pytest.mark.parametrize("received", [1, 4])
@pytest.mark.parametrize("order", one_in(2, [name for name in ORDERS if name != "drawn at once"]))
@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("plan", PLANS)
def test_an_epoch_of_kept_workers_resumes(
    datasets: Any, plan: str, order: str, seed: int | None, received: int
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
