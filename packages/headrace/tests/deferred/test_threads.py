"""Several threads may read one deferred image once it is loaded, as with Pillow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.deferred_images import both
from support.jpegs import jpeg
from support.odd_files import saved

READS: list[Callable[[Any], Any]] = [
    lambda image: image.tobytes(),
    lambda image: image.load()[3, 4],
    lambda image: np.asarray(image).tobytes(),
    lambda image: image.convert("RGB").tobytes(),
    lambda image: image.crop((3, 4, 30, 20)).tobytes(),
    lambda image: image.resize((20, 21)).tobytes(),
    lambda image: image.transpose(Image.Transpose.ROTATE_90).tobytes(),
    lambda image: image.copy().getpixel((5, 6)),
]
THREADS = 8


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize("mode", ["P", "RGB"])
def test_threads_read_one_image(mode: str) -> None:
    data = saved("PNG", "P", 61, 47) if mode == "P" else jpeg(np.random.default_rng(0), "4:2:0", 61, 47)
    barrier = Barrier(THREADS)

    def reads(images: list[Any], number: int) -> list[Any]:
        found = []
        for round, image in enumerate(images):
            barrier.wait()
            try:
                found.append(READS[(number + round) % len(READS)](image))
            except BaseException:
                barrier.abort()  # the other threads would wait for this one
                raise
        return found

    for step in (
        lambda image: image,
        lambda image: image.crop((1, 1, 50, 40)),
        lambda image: image.convert("RGB").rotate(20).resize((40, 30)),
    ):
        results = []
        with ThreadPoolExecutor(THREADS) as threads:
            for which in range(2):
                images = [both(data)[which] for _ in range(40)]
                for image in images:
                    image.load()
                made = [step(image) for image in images]
                results.append(list(threads.map(lambda n, made=made: reads(made, n), range(THREADS))))
        assert results[0] == results[1]


def test_a_pixel_that_one_thread_has_set_stays() -> None:
    data = jpeg(np.random.default_rng(0), "4:2:0", 61, 47)
    barrier = Barrier(2)

    def change(image: Any) -> None:
        barrier.wait()
        image.load()[3, 4] = (1, 2, 3)

    def read(image: Any) -> None:
        barrier.wait()
        image.getpixel((0, 0))

    with ThreadPoolExecutor(2) as threads:
        for _ in range(60):
            image = both(data)[0].convert("RGB").rotate(20)
            for done in [threads.submit(change, image), threads.submit(read, image)]:
                done.result()
            assert image.getpixel((3, 4)) == (1, 2, 3)
