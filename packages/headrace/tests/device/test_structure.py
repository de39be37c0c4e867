"""Nested batches: every tensor is found, every type kept, and what doesn't change is the same object."""

from __future__ import annotations

import types
from collections import OrderedDict, UserDict, UserList, defaultdict, namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torchvision import tv_tensors

from headrace.device.structure import batch_size, leaves, map_leaves, own_move, tensors, total_nbytes

Pair = namedtuple("Pair", "image label")


@dataclass(frozen=True)
class Frozen:
    image: torch.Tensor
    name: str
    extra: Any = field(default=None, init=False)


@dataclass(frozen=True, slots=True)
class Slotted:
    image: torch.Tensor


class Names(list):  # type: ignore[type-arg]
    """A list with an attribute."""

    origin = ""


class Encoding(UserDict):  # type: ignore[type-arg]
    """As tokenizers' batches are: a mapping that moves itself."""

    def to(self, device: Any) -> Encoding:
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


class Boxes:
    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def to(self, device: Any, non_blocking: bool = False) -> Boxes:
        return Boxes(self.values.to(device, non_blocking=non_blocking))


class Metres:
    def to(self, unit: str) -> Metres:
        raise AssertionError(f"{unit} isn't a unit")


class Locked(Mapping):  # type: ignore[type-arg]
    """Can't be made from a dict."""

    def __init__(self, one: torch.Tensor, two: int) -> None:
        self.items_ = {"one": one, "two": two}

    def __getitem__(self, key: str) -> Any:
        return self.items_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return 2


def doubled(value: Any) -> Any:
    return map_leaves(value, lambda leaf: leaf * 2 if isinstance(leaf, torch.Tensor) else leaf)


ONE = torch.ones(2)
SAMES: list[Any] = [
    {"a": ONE},
    OrderedDict(a=ONE),
    defaultdict(list, a=ONE),
    types.MappingProxyType({"a": ONE}),
    UserDict({"a": ONE}),
    [ONE, "name", 3],
    Names([ONE]),
    UserList([ONE]),
    (ONE, b"bytes"),
    Pair(ONE, 3),
    Frozen(ONE, "x"),
    Slotted(ONE),
    torch.return_types.max((ONE, ONE)),
]


@pytest.mark.parametrize("batch", SAMES, ids=lambda batch: type(batch).__name__)
def test_types_are_kept_and_tensors_replaced(batch: Any) -> None:
    new = doubled(batch)
    assert type(new) is type(batch)
    assert next(tensors(new)).tolist() == [2, 2]
    assert next(tensors(batch)).tolist() == [1, 1]
    assert len(list(leaves(new))) == len(list(leaves(batch))) >= 1


@pytest.mark.parametrize("batch", SAMES, ids=lambda batch: type(batch).__name__)
def test_a_batch_in_which_nothing_changes_stays_itself(batch: Any) -> None:
    nested = {"deep": [batch, (batch, 1)]}
    assert map_leaves(nested, lambda leaf: leaf) is nested


def test_the_rest_of_a_container_comes_along() -> None:
    names = Names([ONE, "x"])
    names.origin = "here"
    assert doubled(names).origin == "here"
    pair = doubled(Pair(ONE, 3))
    assert (pair.image.tolist(), pair.label) == ([2, 2], 3)
    frozen = Frozen(ONE, "x")
    object.__setattr__(frozen, "extra", [ONE])
    assert doubled(frozen).extra[0].tolist() == [2, 2]
    assert doubled(defaultdict(list, a=ONE))["absent"] == []


def test_what_cannot_be_made_again_becomes_plain() -> None:
    new = doubled(Locked(ONE, 2))
    assert type(new) is dict
    assert (new["one"].tolist(), new["two"]) == ([2, 2], 2)


def test_subclasses_of_tensor_are_tensors() -> None:
    image = tv_tensors.Image(torch.zeros(3, 4, 4, dtype=torch.uint8))
    moved = map_leaves([image], lambda leaf: leaf.to("meta"))
    assert type(moved[0]) is tv_tensors.Image
    assert moved[0].device.type == "meta"


def test_lists_of_tensors_of_different_shapes() -> None:
    batch = ([torch.zeros(3, n, n) for n in (2, 5)], [{"boxes": torch.zeros(n, 4)} for n in (1, 0)])
    assert [tuple(tensor.shape) for tensor in tensors(doubled(batch))] == [
        (3, 2, 2),
        (3, 5, 5),
        (1, 4),
        (0, 4),
    ]
    assert total_nbytes(batch) == 4 * (12 + 75 + 4)


def test_objects_that_move_themselves_are_leaves() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    boxes, encoding = Boxes(ONE), Encoding(ids=ONE)
    assert [type(leaf) for leaf in leaves([packed, boxes, encoding])] == [PackedSequence, Boxes, Encoding]
    assert own_move(packed) == own_move(boxes) == "non_blocking"
    assert own_move(encoding) == "blocking"
    # Their tensors are seen where they are containers too.
    assert len(list(tensors([packed, boxes, encoding]))) == 3


def test_a_method_named_to_may_mean_something_else() -> None:
    assert own_move(Metres()) == "none"
    assert own_move(torch.nn.Identity()) == "none"
    batch = [Metres(), torch.nn.Identity(), None, 3, "text", b"bytes", object, Frozen]
    assert map_leaves(batch, lambda leaf: pytest.fail(f"{leaf} is no leaf")) is batch


def test_batch_size_and_bytes_of_nested_batches() -> None:
    assert batch_size({"name": ["a", "b"], "x": torch.zeros(7, 2)}) == 7
    assert batch_size([torch.tensor(3.0)]) == batch_size([]) == batch_size("text") == 1
    assert total_nbytes({"a": torch.zeros(2, 3), "b": torch.eye(2).to_sparse(), "c": "text"}) == 24
