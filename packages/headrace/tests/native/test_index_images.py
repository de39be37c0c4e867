"""What the index of a pack holds of images, many of them in one native call."""

from __future__ import annotations

import io
import os
import zlib

import numpy as np
import pytest
from PIL import Image

from headrace._native import ffi


def encoded(side: int, kind: str, **options: object) -> bytes:
    levels = np.random.default_rng(side).integers(0, 256, (side, side + 7, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, kind, **options)
    return file.getvalue()


def test_checksums_equal_zlibs_for_every_length() -> None:
    files = [os.urandom(size) for size in (*range(70), 4096, 100_003)]
    facts = ffi.index_images(files)
    assert [each.checksum for each in facts] == [zlib.crc32(file) for file in files]


def test_a_call_for_many_images_gives_what_calls_for_each_give() -> None:
    files = [
        encoded(200, "JPEG"),
        b"",
        encoded(201, "JPEG", progressive=True),
        encoded(30, "PNG"),
        encoded(202, "JPEG")[:3000],
        b"not an image",
        encoded(203, "JPEG", quality=95),
    ]
    together = ffi.index_images(files)
    assert together == [ffi.index_images([file])[0] for file in files]
    assert [(each.width, each.height) for each in together[::2]][:2] == [(207, 200), (208, 201)]
    assert [bool(each.entries) for each in together] == [True, False, False, False, False, False, True]
    assert ffi.index_images([]) == []


def test_images_that_native_code_cannot_read_have_no_size() -> None:
    gif, bmp = encoded(20, "GIF"), encoded(20, "BMP")
    assert [each[1:] for each in ffi.index_images([gif, bmp, b"\xff\xd8\xff"])] == [(0, 0, b"")] * 3


@pytest.mark.parametrize("every", [1, 2, 7])
def test_entry_points_as_dense_as_specified_need_no_more_room_than_there_is(every: int) -> None:
    levels = np.zeros((2000, 2000), np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "JPEG", optimize=True)  # some bits a block: the most entries a byte
    dense, sparse = (ffi.index_images([file.getvalue()], n)[0].entries for n in (every, 8 * every))
    assert len(dense) > len(sparse) > 0
