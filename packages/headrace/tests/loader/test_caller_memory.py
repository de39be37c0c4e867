"""Without workers, batches of large samples are made in memory that is used again."""

from __future__ import annotations

import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

import headrace
from support.equal import same

LARGE = 140_000  # floats of a sample: a batch of one is large


class Large(Dataset[Any]):
    """An array, and in a dict a tensor, a number and a name."""

    def __init__(self, size: int = 22, shape: tuple[int, ...] = (LARGE,)) -> None:
        self.size = size
        self.shape = shape

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        array = np.full(self.shape, index, np.float32)
        return array, {"mask": torch.full((200_000,), index % 7, dtype=torch.uint8), "n": index, "name": "x"}


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"drop_last": True}, {"on_error": "skip"}])
def test_batches_of_large_samples_are_those_of_torch(options: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Large(), batch_size=4, num_workers=0, **options)
    theirs = DataLoader(Large(), batch_size=4, num_workers=0, drop_last="drop_last" in options)
    for _ in range(2):
        assert all(same(a, b) for a, b in zip(loader, theirs, strict=True))


def test_memory_of_batches_that_were_dropped_is_used_again() -> None:
    loader = headrace.DataLoader(Large(40), batch_size=4, num_workers=0)
    places = set()
    for array, _ in loader:
        places.add(array.data_ptr())
        del array
    assert len(places) <= 2, "the batch that the loop holds, and the next"


def test_a_part_of_a_batch_that_is_held_is_never_overwritten() -> None:
    held = []
    for array, rest in headrace.DataLoader(Large(40), batch_size=4, num_workers=0):
        held.append((array[1:2, ::7].numpy(), rest["mask"][3]))
        del array, rest
        gc.collect()
    for number, (part, mask) in enumerate(held):
        assert (part == 4 * number + 1).all()
        assert (mask == (4 * number + 3) % 7).all()


class Turned(Dataset[torch.Tensor]):
    """Images as NumPy holds them, with the channels first for torch; some are contiguous, as `first` says."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        turned = torch.full((200, 300, 3), index, dtype=torch.float32).permute(2, 0, 1)
        return turned.contiguous() if index < self.first else turned


@pytest.mark.parametrize("contiguous", [0, 2, 4])
def test_batches_have_the_strides_that_torch_gives_them(contiguous: int) -> None:
    ours = headrace.DataLoader(Turned(contiguous), batch_size=4, num_workers=0)
    for a, b in zip(ours, DataLoader(Turned(contiguous), batch_size=4), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


class OneBuffer(Large):
    """Returns the same array each time, with other values."""

    def __init__(self, *, as_tensor: bool) -> None:
        super().__init__()
        self.buffer = np.zeros(LARGE, np.float32)
        self.as_tensor = as_tensor

    def __getitem__(self, index: int) -> Any:
        self.buffer[:] = index
        return torch.from_numpy(self.buffer) if self.as_tensor else self.buffer[:]


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("batches", [[[0, 1, 2, 3], [4, 5, 6]], [[0], [1, 2, 3], [4]]])
def test_samples_in_one_buffer_are_collated_when_all_are_made_as_by_torch(
    as_tensor: bool, batches: list[list[int]]
) -> None:
    dataset = OneBuffer(as_tensor=as_tensor)
    ours = list(headrace.DataLoader(dataset, batch_sampler=batches, num_workers=0))
    theirs = list(DataLoader(dataset, batch_sampler=batches))
    assert len(ours) == len(theirs)
    assert all(map(torch.equal, ours, theirs))


class Named(Large):
    """A name in place of the first array of the second batch."""

    def __getitem__(self, index: int) -> Any:
        return "missing" if index == 4 else np.full(LARGE, index, np.float32), index


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2, "worker_kind": "thread"}])
def test_arrays_beside_names_are_given_as_by_torch(options: dict[str, Any]) -> None:
    ours = list(headrace.DataLoader(Named(), batch_size=4, **options))
    theirs = list(DataLoader(Named(), batch_size=4))
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("pinned", [False, True])
def test_a_smaller_last_batch_has_memory_of_its_own_size(pinned: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, where there is nothing to pin for
        *_, last = headrace.DataLoader(Large(), batch_size=4, num_workers=0, pin_memory=pinned)
    assert last[0].untyped_storage().nbytes() == last[0].nbytes
    assert len(pickle.dumps(last[0])) < last[0].nbytes + 1000


class Failing(Large):
    """Every fifth sample fails."""

    def __getitem__(self, index: int) -> Any:
        if index % 5 == 4:
            raise ValueError("bad sample")
        return super().__getitem__(index)


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_failing_samples_are_left_out_or_replaced_among_large_ones(
    on_error: Literal["skip", "replace"],
) -> None:
    loader = headrace.DataLoader(Failing(20), batch_size=4, num_workers=0, on_error=on_error)
    given = torch.cat([rest["n"] for _, rest in loader]).tolist()
    others = {4: 5, 9: 10, 14: 15, 19: 0}
    kept = [i for i in range(20) if i not in others]
    assert given == (kept if on_error == "skip" else [others.get(i, i) for i in range(20)])
    arrays = torch.cat([array[:, 0] for array, _ in loader]).tolist()
    assert arrays == given


def test_an_error_in_a_later_batch_names_the_sample_and_the_next_batch_still_comes() -> None:
    batches = iter(headrace.DataLoader(Failing(15), batch_size=4, num_workers=0))
    assert next(batches)[1]["n"].tolist() == [0, 1, 2, 3]
    for bad in (4, 9, 14):
        with pytest.raises(ValueError, match="bad sample") as caught:
            next(batches)
        if hasattr(caught.value, "add_note"):
            assert f"this was sample {bad} " in caught.value.__notes__[-1]
    assert next(batches, None) is None


class Tracked(Large):
    def __getitem__(self, index: int) -> Any:
        return torch.full((LARGE,), float(index), requires_grad=True)


def test_samples_that_require_gradients_keep_them() -> None:
    for batch in headrace.DataLoader(Tracked(), batch_size=4, num_workers=0):
        assert batch.requires_grad


class OneUnlike(Large):
    """Tensors that can be stacked in reused memory, and one, in the middle of a batch, that perhaps can't."""

    def __init__(self, kind: str) -> None:
        super().__init__(8)
        self.kind = kind

    def __getitem__(self, index: int) -> Any:
        plain = torch.full((LARGE,), float(index))
        return UNLIKE[self.kind](plain) if index == 6 else plain


UNLIKE: dict[str, Callable[[torch.Tensor], Any]] = {
    "a gradient": lambda plain: plain.requires_grad_(),
    "a parameter": nn.Parameter,
    "doubles": torch.Tensor.double,
    "integers": torch.Tensor.long,
    "bits": torch.Tensor.bool,
    "sparse": torch.Tensor.to_sparse,
    "without memory": lambda plain: plain.to("meta"),
    "another shape": lambda plain: plain[:-1],
    "a view of complex numbers": lambda plain: torch.complex(plain, plain).conj().imag,
    "an array": torch.Tensor.numpy,
    "a list": torch.Tensor.tolist,
}


@pytest.mark.parametrize("kind", UNLIKE)
@pytest.mark.parametrize("workers", [0, 1, "thread"])
def test_one_unlike_sample_is_collated_as_by_torch(kind: str, workers: Any) -> None:
    options = {"num_workers": 2, "worker_kind": "thread"} if workers == "thread" else {"num_workers": workers}
    outcomes: list[Any] = []
    for make in (
        lambda dataset: headrace.DataLoader(dataset, batch_size=4, **options),
        lambda dataset: DataLoader(dataset, batch_size=4, num_workers=1 if workers == 1 else 0),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, about resizing
            try:
                outcomes.append(list(make(OneUnlike(kind))))
            except Exception as error:
                outcomes.append((type(error), str(error)))
    ours, theirs = outcomes
    if isinstance(theirs, tuple):
        assert ours[0] is theirs[0]
        assert workers == 1 or ours[1].startswith(theirs[1])
    else:
        assert same(ours, theirs)
        assert [batch.requires_grad for batch in ours] == [batch.requires_grad for batch in theirs]


def test_a_collate_function_of_the_user_gets_the_samples() -> None:
    def collate(samples: list[Any]) -> Any:
        assert all(type(array) is np.ndarray for array, _ in samples)
        return default_collate(samples)

    loader = headrace.DataLoader(Large(), batch_size=4, num_workers=0, collate_fn=collate)
    assert [len(array) for array, _ in loader] == [4, 4, 4, 4, 4, 2]


def test_memory_held_is_reported() -> None:
    loader = headrace.DataLoader(Large(40), batch_size=4, num_workers=0)
    held = list(loader)
    sizes = sum(array.nbytes + rest["mask"].nbytes for array, rest in held)
    assert loader.stats().memory_used == sizes
    del held
    gc.collect()
    assert loader.stats().memory_used == 0


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"num_workers": 2, "worker_kind": "thread"}], ids=str
)
def test_a_loader_leaves_nothing_to_the_garbage_collection(options: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Large(8), batch_size=4, **options)
    assert len(list(loader)) == 2
    memory = weakref.ref(loader._builder._collate)  # type: ignore[arg-type]
    gc.collect()
    gc.disable()
    try:
        del loader
        assert memory() is None
        assert gc.collect() == 0
    finally:
        gc.enable()


class Length:
    def __init__(self, metres: float) -> None:
        self.metres = metres


class Lengths(Dataset[Length]):
    """Teaches `default_collate` its class when the first sample is made."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Length:
        default_collate_fn_map[Length] = lambda samples, **_: torch.tensor([each.metres for each in samples])
        return Length(index / 2)


def test_a_type_that_is_registered_during_an_epoch_is_collated() -> None:
    try:
        for options in ({"num_workers": 0}, {"num_workers": 1, "worker_kind": "thread"}):
            default_collate_fn_map.pop(Length, None)
            loader = headrace.DataLoader(Lengths(), batch_size=2, **options)  # type: ignore[arg-type]
            assert [batch.tolist() for batch in loader] == [[0.0, 0.5], [1.0, 1.5]]
    finally:
        default_collate_fn_map.pop(Length, None)
