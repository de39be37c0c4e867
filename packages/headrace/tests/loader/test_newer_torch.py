"""What torch's loader does since version 2.6, whose tests are run as a whole (tests/integrations)."""

from __future__ import annotations

import gc
import weakref
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from torch.utils import data

import headrace


class Changed(data.Subset[int]):
    """Overrides one of two methods that belong together, which torch 2.15 refuses and 2.6 does not."""

    def __getitem__(self, index: Any) -> int:
        return super().__getitem__(index) + 1


class Described(data.Dataset[Any]):
    """What a worker knows of itself, and whether it may be changed."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[str]:
        info: Any = data.get_worker_info()
        named = sorted(field.name for field in fields(info)) if is_dataclass(info) else []
        try:
            info.id = 5
        except Exception as error:
            named.append(type(error).__name__)
        return [*named, str(info.id), str(info.num_workers), str(getattr(info, "worker_method", None))]


def outcome(make: Any) -> Any:
    try:
        return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in make()]
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_subset_that_changes_its_samples_is_taken_as_by_torch(workers: int) -> None:
    found = [
        outcome(lambda: loader(Changed(range(6), [1, 2, 3]), 2, num_workers=workers))  # type: ignore[arg-type]  # noqa: B023
        for loader in (headrace.DataLoader, data.DataLoader)
    ]
    assert found[0] == found[1]


def test_workers_know_of_themselves_what_torchs_know() -> None:
    found = [
        outcome(lambda: loader(Described(), None, num_workers=2))  # noqa: B023
        for loader in (headrace.DataLoader, data.DataLoader)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_dataset_is_freed_with_its_loader_in_mid_epoch(method: str) -> None:
    dataset = Described()
    kept = weakref.ref(dataset)
    loader = headrace.DataLoader(dataset, None, num_workers=1, multiprocessing_context=method)
    batches = iter(loader)
    next(batches)
    del dataset, loader, batches
    gc.collect()
    assert kept() is None
