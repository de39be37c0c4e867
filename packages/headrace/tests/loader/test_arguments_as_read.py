"""What a loader's attributes read, what other loaders made of them do, and what isn't called is said."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data
from torch.utils.data import DistributedSampler, IterableDataset, TensorDataset
from torchvision.datasets import ImageFolder

import headrace
from headrace.config import LoaderConfig
from headrace.errors import ConfigError


class Numbers(data.Dataset[int]):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


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
    """As Lightning does it: another loader of the attributes of one."""
    return headrace.DataLoader(
        batch_sampler=loader.batch_sampler, **{name: getattr(loader, name) for name in ATTRIBUTES}
    )


def given(loader: headrace.DataLoader[Any]) -> tuple[int | None, int | None]:
    """Workers and prefetch factor, where they weren't left open."""
    config = LoaderConfig.of(loader)
    return config.workers_given, config.prefetch_factor_given


def test_numbers_that_were_left_open_read_as_ints_and_stay_open() -> None:
    loader = headrace.DataLoader(Numbers())
    assert isinstance(loader.num_workers, int)
    assert (loader.num_workers >= 1, loader.prefetch_factor) == (True, 2)
    for other in (made_again(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert given(other) == (None, None)
        assert (other.num_workers, other.prefetch_factor) == (loader.num_workers, 2)
    rows = headrace.DataLoader(TensorDataset(torch.arange(3)))
    assert (rows.num_workers, rows.prefetch_factor) == (0, None)
    torchs = data.DataLoader(
        Numbers(), num_workers=loader.num_workers, prefetch_factor=loader.prefetch_factor
    )
    assert torchs.num_workers == loader.num_workers


def test_numbers_that_were_given_stay_given() -> None:
    loader = made_again(headrace.DataLoader(Numbers(), num_workers=3, prefetch_factor=5))
    assert given(loader) == (3, 5)
    loader = headrace.DataLoader(Numbers())
    loader.num_workers, loader.prefetch_factor = 1, 4
    assert given(loader) == (1, 4)


@pytest.mark.parametrize("kind", ["native", "gathered", "thread"])
def test_a_worker_init_fn_without_workers_is_reported_once(kind: str, dataset: ImageFolder) -> None:
    rows = {"native": dataset, "gathered": TensorDataset(torch.arange(9)), "thread": Numbers()}[kind]
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
    assert len(list(headrace.DataLoader(Numbers(), num_workers=2, worker_init_fn=look))) == 30
    with pytest.raises(RuntimeError, match=r"worker [01] can't start"):
        list(headrace.DataLoader(Numbers(), num_workers=2, worker_init_fn=fail))


def test_rank_auto_shares_what_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    sampler: Any = DistributedSampler(Numbers(), 2, 1, shuffle=False)
    loader = headrace.DataLoader(Numbers(), 5, sampler=sampler, rank="auto", num_workers=0)
    assert [batch.tolist() for batch in loader] == [list(range(1 + 10 * i, 10 * i + 11, 2)) for i in range(3)]
    assert "ranks: left to the sampler; rank='auto' changes nothing there" in loader.explain()
    assert [int(sample) for sample in headrace.DataLoader(Stream(), rank="auto")] == [0, 1, 2]
    assert len(headrace.DataLoader(Numbers(), 5, rank="auto")) == 3
    with pytest.raises(ConfigError, match="the epoch can't be shared among ranks"):
        headrace.DataLoader(Numbers(), 5, sampler=sampler, rank=1, world_size=2)
