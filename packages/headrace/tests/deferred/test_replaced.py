"""Functions of torch that workers replace are the same to programs that look them up, follow or copy them."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import functional as F1  # noqa: N812  (torchvision's own name for it)

from headrace import _torch_compat
from headrace.deferred import batches, recording, tensors
from support.deferred_images import never_deferred
from support.jpegs import jpeg

FILE = jpeg(np.random.default_rng(1), "4:2:0", 83, 57)
TO_FLOATS = v1.Compose([v1.ToTensor(), v1.ConvertImageDtype(torch.float16)])
REPLACED: list[tuple[Any, str]] = [
    *((torch, name) for name in batches.FUNCTIONS),
    *((torch.Tensor, name) for name in (*batches.METHODS, *tensors.METHODS)),
]
COLLATED = _torch_compat.default_collate_functions()[torch.Tensor]
TORCHS = {name: getattr(owner, name) for owner, name in REPLACED}


pytestmark = pytest.mark.usefixtures("recorded")


@pytest.mark.parametrize(("owner", "name"), REPLACED)
def test_a_function_is_equal_to_torchs(owner: Any, name: str) -> None:
    now, torchs = getattr(owner, name), TORCHS[name]
    assert type(now) is not type(torchs)
    assert now == torchs
    assert torchs == now
    assert (now in {torchs: 1}, torchs in {now: 1}) == (True, True)
    assert (repr(now), now.__name__, now.__doc__) == (repr(torchs), torchs.__name__, torchs.__doc__)
    assert pickle.loads(pickle.dumps(now)) == copy.deepcopy(now) == torchs
    own = type("Own", (), {name: now})()  # a class that keeps a function of torch has it unbound
    assert isinstance(getattr(own, name), MethodType) == (owner is torch.Tensor)


def test_what_the_program_replaces_later_stays() -> None:
    namespace: Any = torch
    table = _torch_compat.default_collate_functions()
    table[torch.Tensor] = namespace.stack = namespace.Tensor.float = len
    recording.stop()
    try:
        assert (table[torch.Tensor], torch.stack, torch.Tensor.float) == (len, len, len)
    finally:
        table[torch.Tensor], namespace.stack = COLLATED, TORCHS["stack"]
        del namespace.Tensor.float


def test_a_default_device_counts() -> None:
    _device._device_constructors.cache_clear()  # as in a program that hasn't used one before
    with torch.device("meta"):
        assert torch.zeros(2, 3, 200, 200).device.type == "meta"


class Handled(torch.Tensor):
    """A tensor with functions of its own, found in a table, as torch's documentation suggests."""

    table: ClassVar = {
        TORCHS["div"]: "div",
        TORCHS["__setitem__"]: "set",
        TORCHS["stack"]: "stack",
        TORCHS["to"]: "to",
    }

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls.table.get(func, NotImplemented)


def test_subclasses_find_their_own_functions() -> None:
    own = torch.ones(3, 4, 4).as_subclass(Handled)
    batch = torch.zeros(2, 3, 200, 200)
    assert [own.div(2), own.to(torch.float16), torch.stack([own])] == ["div", "to", "stack"]
    batch[0, :, :4, :4] = own
    with pytest.raises(TypeError, match="copy_"):
        batch[0, :, :4, :4].copy_(own)


class Functions(TorchFunctionMode):
    """Notes each function that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Notes each operator that torch calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def calls(x: torch.Tensor) -> list[torch.Tensor]:
    image = tv_tensors.Image(x)
    padded = torch.zeros(2, 3, 200, 200, dtype=torch.uint8)
    padded[0, :, :57, :83].copy_(x)
    padded[1, :, :57, :83] = x
    other = image.new_zeros(2, 3, 200, 200)
    other[0, :, :57, :83] = image
    rows = x.float().contiguous().flatten(1)
    made = F1.normalize(TO_FLOATS(Image.fromarray(x.permute(1, 2, 0).numpy())), [0.5], [0.5])
    decoded = torch.ops.image.decode_image(torch.frombuffer(bytearray(FILE), dtype=torch.uint8), 0, False)
    stacked = torch.stack([image, image])
    return [padded, other, stacked, torch.cat([rows, rows / 2]), F1.hflip(image), made, decoded]


@pytest.mark.parametrize("mode", [Functions, Operators])
def test_modes_see_what_torch_calls(mode: Callable[[], AbstractContextManager[Any]]) -> None:
    seen, made = [], []
    for image in (Image.open(io.BytesIO(FILE)), never_deferred(Image.open(io.BytesIO(FILE)))):
        x = F1.pil_to_tensor(image)
        with mode() as active:
            made.append(calls(x))
        seen.append(active.seen)
        recording.stop()
    assert seen[0] == seen[1] != []
    assert all(map(torch.equal, *made))
