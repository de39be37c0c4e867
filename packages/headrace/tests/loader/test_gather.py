"""Datasets that are in memory: a batch is one gather, with torch's values, order and errors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset, TensorDataset

import headrace
from support.equal import same

TENSORS = (torch.arange(23), torch.rand(23, 3, 2), torch.rand(23) > 0.5, torch.rand(23, 4).half())


def gathers(loader: headrace.DataLoader) -> bool:
    return loader.plan().gather is not None


@settings(max_examples=30)
@given(st.integers(1, 30), st.booleans(), st.integers(0, 2**31), st.sampled_from([None, [5, 0, -1, 5], [3]]))
def test_batches_are_torchs(batch_size: int, drop_last: bool, seed: int, rows: list[int] | None) -> None:
    dataset: TensorDataset | Subset[tuple[torch.Tensor, ...]] = TensorDataset(*TENSORS)
    if rows is not None:
        dataset = Subset(dataset, rows)
    batches = []
    for kind in (DataLoader, headrace.DataLoader):
        generator = torch.Generator().manual_seed(seed)
        loader = kind(dataset, batch_size, shuffle=True, drop_last=drop_last, generator=generator)
        batches.append([list(loader), list(loader), len(loader)])
    assert gathers(loader)  # type: ignore[arg-type]
    assert same(batches[1], batches[0])


def test_a_sampler_may_give_any_index_torch_takes() -> None:
    dataset = TensorDataset(torch.arange(5))
    loader = headrace.DataLoader(dataset, sampler=[4, -5, 2], batch_size=3)
    assert next(iter(loader))[0].tolist() == [4, 0, 2]
    with pytest.raises(IndexError):
        next(iter(headrace.DataLoader(dataset, sampler=[7])))


def test_gradients_and_new_memory_as_from_torch() -> None:
    values = torch.rand(6, 2, requires_grad=True)
    (batch,) = next(iter(headrace.DataLoader(TensorDataset(values), batch_size=6)))
    batch.sum().backward()
    assert values.grad is not None
    plain = torch.zeros(6)
    (batch,) = next(iter(headrace.DataLoader(TensorDataset(plain), batch_size=6)))
    batch += 1
    assert plain.sum() == 0


def test_an_epoch_goes_on_where_it_was_saved() -> None:
    loader = headrace.DataLoader(TensorDataset(torch.arange(40)), batch_size=3, shuffle=True, seed=1)
    whole = [batch[0].tolist() for batch in loader]
    loader.set_epoch(0)
    first = iter(loader)
    begun = [next(first)[0].tolist() for _ in range(4)]
    again = headrace.DataLoader(TensorDataset(torch.arange(40)), batch_size=3, shuffle=True, seed=1)
    again.load_state_dict(loader.state_dict())
    assert begun + [batch[0].tolist() for batch in again] == whole
    assert loader.stats().samples == 52


def test_what_may_do_more_is_asked_sample_by_sample() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            return tuple(2 * tensor for tensor in super().__getitem__(index))

    loader = headrace.DataLoader(Doubled(torch.arange(4)), batch_size=4, num_workers=0)
    assert not gathers(loader)
    assert next(iter(loader))[0].tolist() == [0, 2, 4, 6]
    dataset = TensorDataset(torch.arange(4))
    assert not gathers(headrace.DataLoader(dataset, batch_size=None))
    assert not gathers(headrace.DataLoader(dataset, collate_fn=len))
    assert not gathers(headrace.DataLoader(TensorDataset(torch.eye(3).to_sparse())))
    assert "plan: gather" in headrace.DataLoader(dataset, num_workers=3).explain()


def test_batches_after_a_bad_index_still_come() -> None:
    batches = iter(headrace.DataLoader(TensorDataset(torch.arange(5)), sampler=[0, 9, 3]))
    assert next(batches)[0].tolist() == [0]
    with pytest.raises(IndexError):
        next(batches)
    assert next(batches)[0].tolist() == [3]


def test_indices_that_are_not_ints_are_the_datasets_to_refuse() -> None:
    loader = headrace.DataLoader(Subset(TensorDataset(torch.arange(5)), [0.9, 1.7]), num_workers=0)  # type: ignore[list-item]
    assert not gathers(loader)
