"""Deferred images under load: threads, forks and faults in worker processes that are killed meanwhile."""

from __future__ import annotations

import faulthandler
import io
import multiprocessing
import os
import random
import signal
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Dataset, get_worker_info

import headrace
from headrace._native import deferred as memory
from support.jpegs import jpeg
from support.odd_files import saved

FILES = [jpeg(np.random.default_rng(i), "4:2:0", 150 + i, 120) for i in range(5)]
FILES += [saved("PNG", mode, 90, 70) for mode in ("RGB", "L")] + [saved("WEBP", "RGB", 80, 60)]
LUCK = random.SystemRandom()
FLIP = Image.Transpose.FLIP_LEFT_RIGHT


class Rough(Dataset[Any]):
    """What `index` says is done to images, of which some are kept, and touched in threads and forks."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.kept: list[Any] = []
        self.made: Counter[int] = Counter()  # samples of each process

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        chance = random.Random(index)
        image: Any = Image.open(io.BytesIO(chance.choice(FILES))).convert(chance.choice(["RGB", "L"]))
        for _ in range(chance.randrange(4)):
            image = changed(image, chance)
        self.kept = [*self.kept[-40:], image]
        if chance.random() < 0.1:
            faulthandler.enable()
        self.made[os.getpid()] += 1
        # Killed in the middle of this, unless another process may have been killed at it: twice is an error.
        if get_worker_info() is not None and self.made[os.getpid()] > 20 and LUCK.random() < 0.006:
            threading.Timer(LUCK.uniform(0, 0.003), os.kill, (os.getpid(), signal.SIGKILL)).start()
        seen: list[Any] = []
        if chance.random() < 0.3:
            seen.append(in_a_fork(image))
        if chance.random() < 0.3:
            seen += in_threads(image)
        seen.append(image.load()[2, 3])
        faults = memory.counts().faults
        return np.array(image), image.size, image.mode, seen, faults, os.getpid()


def changed(image: Image.Image, chance: random.Random) -> Image.Image:
    """The image after one of Pillow's steps."""
    width, height = image.size
    filter = chance.choice([*Image.Resampling])
    steps = (
        lambda: image.crop((1, 2, width - 3, height - 1)),
        lambda: image.resize((width // 2 + 5, height // 2 + 9), filter),
        lambda: image.transpose(FLIP),
        lambda: image.rotate(90, expand=True),
        image.copy,
    )
    return chance.choice(steps)()


def in_a_fork(image: Any) -> int:
    """A level of the image, as a child sees it."""
    child = os.fork()
    if child == 0:
        os._exit(int(np.ravel(image.load()[5, 6])[0]) if image.size > (5, 6) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_threads(image: Any) -> list[Any]:
    """Pixels that threads look at, all at once."""
    access, seen = image.load(), [None] * 4
    together = threading.Barrier(4)

    def look(place: int) -> None:
        together.wait()
        seen[place] = access[place, 4]

    threads = [threading.Thread(target=look, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("length", [150, pytest.param(2_000, marks=pytest.mark.long)])
def test_samples_are_pillows_while_workers_are_killed(length: int) -> None:
    chance = random.Random(length)
    dataset = Rough(length)
    loader = headrace.DataLoader(
        dataset, 5, num_workers=2, multiprocessing_context="fork", collate_fn=lambda samples: samples
    )
    faults, received, place = 0, Counter[int](), 0
    for number, batch in enumerate(loader):
        for array, *rest, count, process in batch:
            wanted, *others, _, _ = dataset[place]
            assert np.array_equal(array, wanted), place
            assert rest == others, place
            faults, place = max(faults, count), place + 1
            received[process] += 1
        # Of those that are past what others were killed at: twice at a sample is an error.
        workers = [pid for child in multiprocessing.active_children() if received[pid := child.pid or 0] > 9]
        if number % 12 == 5 and workers:
            os.kill(chance.choice(workers), signal.SIGKILL)
    assert place == length
    assert faults > 10
    assert len(received) > 3
