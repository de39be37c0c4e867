"""Ctrl-C at any time, as in a notebook, where the same loader is used again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.sources.stores.lease import Lease

THREADS = ("threading", "headrace.engine.thread_pool", "headrace.engine.thread_stream")
NATIVE = ("headrace._native.ffi", "headrace.engine.native", "headrace.engine.native_stream")

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="a with statement may skip __exit__: python/cpython#148874"
)


def interrupted(modules: tuple[str, ...], number: int, act: Callable[[], object]) -> bool:
    """Calls `act`, and raises KeyboardInterrupt in it at one of the places where CPython handles signals: the
    start of each Python function of `modules`, and the return from each C function that these call. `number`
    says which, from 1. Returns whether there were so many."""
    left = number

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_globals["__name__"] in modules:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    try:
        sys.setprofile(interrupt)
        act()
    except KeyboardInterrupt:
        assert left <= 0
    except RuntimeError as error:  # of Thread.start(), whose Event is in the middle of a wait
        if left > 0 or str(error) != "release unlocked lock":
            raise
    finally:
        sys.setprofile(None)
    return left <= 0


def in_other_thread(loader: headrace.DataLoader) -> list[Any]:
    """The batches of an epoch, read in another thread: it can't reenter an RLock that this thread still
    holds. Returns fewer batches if that takes more than a minute."""
    batches: list[Any] = []
    thread = threading.Thread(target=lambda: batches.extend(loader), daemon=True)
    thread.start()
    thread.join(60)
    return batches


@pytest.fixture(autouse=True)
def ignore_interrupts_in_finalizers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


def test_worker_threads_can_be_used_after_an_interrupt() -> None:
    numbers: Any = [0, 1, 2, 3]
    for number in count(1):
        loader = headrace.DataLoader(numbers, 2, num_workers=1, worker_kind="thread")
        last = not interrupted(THREADS, number, partial(list, loader))
        assert [batch.tolist() for batch in in_other_thread(loader)] == [[0, 1], [2, 3]], number
        if last:
            break
    assert number > 50


def test_a_thread_can_tell_that_records_are_there_after_an_interrupt() -> None:
    for number in count(1):
        lease = Lease([], 0)
        last = not interrupted(("threading", Lease.__module__), number, partial(lease.wait, 0.01))
        thread = threading.Thread(target=lease.finish, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), number
        assert lease.wait(0), number
        if last:
            break


@pytest.fixture
def photos(tmp_path: Path) -> ImageFolder:
    """4 images whose decoding takes some milliseconds."""
    (tmp_path / "a").mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    for i in range(4):
        Image.fromarray(np.roll(noise, 37 * i, 0)).save(tmp_path / f"a/{i:02}.jpg")
    crop = transforms.RandomResizedCrop(224)
    return ImageFolder(str(tmp_path), transforms.Compose([crop, transforms.ToTensor()]))


def test_an_epoch_that_continues_after_an_interrupt_has_all_samples(photos: ImageFolder) -> None:
    """Pillow makes some of them: native code doesn't read bitmaps."""
    for path, _ in photos.samples[1:3]:
        Image.open(path).resize((40, 40)).save(path, "BMP")
    [(images, _)] = headrace.DataLoader(photos, 4, seed=1)
    for number in count(1):
        loader = headrace.DataLoader(photos, 4, seed=1, num_workers=1)
        batches = iter(loader)
        last = not interrupted((*NATIVE, "threading"), number, partial(list, batches))
        assert all(torch.equal(batch, images) for batch, _ in batches), number
        loader.set_epoch(0)
        [(again, _)] = in_other_thread(loader)
        assert torch.equal(again, images), number
        if last:
            break
    assert number > 50


def test_native_threads_of_an_interrupted_epoch_write_to_no_later_batch(photos: ImageFolder) -> None:
    def made() -> headrace.DataLoader:
        return headrace.DataLoader(photos, 2, shuffle=True, seed=1, num_workers=2)

    expected = made()
    expected.set_epoch(1)
    images = torch.cat([batch for batch, _ in expected])
    loader = made()
    for number in count(1):
        loader.set_epoch(0)
        last = not interrupted(NATIVE, number, partial(list, loader))
        loader.set_epoch(1)
        assert torch.equal(torch.cat([batch for batch, _ in in_other_thread(loader)]), images), number
        if last:
            break
    assert number > 50
