"""What `explain()` notes of the user's code, and that noting it changes nothing for that code."""

from __future__ import annotations

import io
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import headrace
from support.jpegs import jpeg

FILE = jpeg(np.random.default_rng(0), "4:4:4", 33, 21)


def opened() -> Image.Image:
    return Image.open(io.BytesIO(FILE))


class Held:
    """Something that a weak reference may refer to."""


def grows_a_bytearray(image: Image.Image) -> int:
    buffer = bytearray(8)
    view = memoryview(buffer)
    view[0] = int(np.asarray(image)[0, 0, 0])
    del view
    buffer.extend(bytes(8))
    return buffer[0] + len(buffer)


def empties_a_bytearray(image: Image.Image) -> int:
    buffer = bytearray(8)
    pixels = np.frombuffer(buffer, np.uint8)
    pixels[:] = list(image.tobytes()[:8])
    total = int(pixels.sum())
    del pixels
    del buffer[:]
    return total + len(buffer)


def resizes_an_array(image: Image.Image) -> int:
    array = np.zeros(4, np.int64)
    part = array[1:]
    part[0] = image.getpixel((0, 0))[0]  # type: ignore[index]
    del part
    array.resize(9)
    return int(array.sum()) + len(array)


def drops_an_object(image: Image.Image) -> bool:
    held = Held()
    reference = weakref.ref(held)
    image.load()[0, 0]  # type: ignore[index]
    del held
    return reference() is None


class Samples(Dataset[Any]):
    def __init__(self, make: Callable[[Image.Image], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        # A tracer, such as that of coverage, keeps local variables alive itself.
        sys.settrace(None)
        return self.make(opened())


@pytest.mark.parametrize(
    "make",
    [
        grows_a_bytearray,
        empties_a_bytearray,
        resizes_an_array,
        drops_an_object,
    ],
)
def test_local_variables_of_the_users_code_end_as_in_torchs_workers(make: Callable[..., Any]) -> None:
    wanted = list(DataLoader(Samples(make), 2, num_workers=1, collate_fn=list))
    assert list(headrace.DataLoader(Samples(make), 2, num_workers=1, collate_fn=list)) == wanted
