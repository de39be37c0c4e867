"""Memory of batches: bounded, reused once nobody holds it, and shared with worker processes."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder

import headrace
from headrace.engine.workers import transport
from headrace.engine.workers.transport import SEGMENT_NBYTES, Inbox, Outbox
from support.datasets import Made
from support.python import run_python

LITTLE_MEMORY = """
import ctypes, os, subprocess, sys, torch, warnings
import numpy as np
warnings.simplefilter("ignore")
from torch.utils.data import Dataset, default_collate
import headrace

class Rows(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.full((1 << 19,), float(index))

class Arrays(Rows):
    def __getitem__(self, index):
        return super().__getitem__(index).numpy()

def stacked(samples):
    return torch.stack(samples), {"more": torch.stack(samples)}

def collated(samples):
    return default_collate(samples), {"more": default_collate(samples)}

def check(batches, options):
    for i, batch in enumerate(batches):
        for part in (batch[0], batch[1]["more"]) if isinstance(batch, (list, tuple)) else (batch,):
            expected = [4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3]
            assert [int(row[-1]) for row in part] == expected, (options, i)
    assert i == 5

if __name__ == "__main__":
    # In a mount namespace of its own, from which nothing is seen outside.
    mount = "mount --make-rprivate / && mount -t tmpfs -o size=4m tmpfs /dev/shm"
    if ctypes.CDLL(None).unshare(0x20000) or subprocess.run(mount, shell=True, stderr=-3).returncode:
        sys.exit(77)
    for options in (
        {"dataset": Rows()},
        {"dataset": Rows(), "collate_fn": stacked},
        {"dataset": Rows(), "collate_fn": collated},
        {"dataset": Arrays()},
        {"dataset": Arrays(), "collate_fn": np.stack},
        {"dataset": Rows(), "multiprocessing_context": "forkserver", "num_workers": 1},
    ):
        options = {"num_workers": 2, "worker_kind": "process", "batch_size": 4, **options}
        loader = headrace.DataLoader(**options)
        check(loader, options)
        held = list(loader)
        check(held, options)
        assert os.listdir("/dev/shm") == [], options
        del held, loader
"""


def test_a_dev_shm_of_half_a_batch_is_enough(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LITTLE_MEMORY)
    done = run_python(script)
    if done.returncode == 77:
        pytest.skip("a mount namespace isn't allowed here")
    assert done.returncode == 0, done.stderr


def row(index: int) -> torch.Tensor:
    return torch.full((1 << 19,), float(index))


def mapped() -> list[str]:
    """Inodes and names of the memory of batches that this process has mapped."""
    gc.collect()
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split(maxsplit=4)[4] for line in lines if f"memfd:headrace-{os.getpid()}-" in line]


def test_memory_is_named_after_the_process_that_it_belongs_to_and_goes_with_the_last_batch() -> None:
    def batches() -> list[str]:
        return [name for name in mapped() if "progress" not in name]

    before = batches()
    loader = headrace.DataLoader(Made(row, 48), batch_size=4, num_workers=2, worker_kind="process")
    held = list(loader)
    assert len(batches()) - len(before) == len(held) == 12
    del held
    left = iter(loader)
    next(left)
    del left, loader
    assert batches() == before


def test_workers_of_later_epochs_get_the_memory_of_batches_that_nobody_holds() -> None:
    loader = headrace.DataLoader(Made(row, 48), batch_size=4, num_workers=2, worker_kind="process")
    assert len(list(loader)) == 12
    first = next(iter(loader))  # left behind, as are those after it
    held = [first]
    after_one_epoch: set[str] = set()
    for _ in range(4):
        for i, batch in enumerate(loader):
            assert batch[:, 0].tolist() == batch[:, -1].tolist() == [4.0 * i + k for k in range(4)]
        held.append(batch)
        after_one_epoch = after_one_epoch or set(mapped())
    assert [int(batch[0, -1]) for batch in held] == [0, 44, 44, 44, 44]
    # One for each batch that is held since; without that memory each epoch would leave three.
    assert len(set(mapped()) - after_one_epoch) < 6
    del batch, first, held, loader


def made_for(index: int) -> torch.Tensor:
    return torch.full((1 << 19,), float(os.getppid()))


def test_a_forked_process_leaves_the_memory_of_ended_workers_to_its_parent() -> None:
    loader = headrace.DataLoader(Made(made_for, 48), batch_size=4, num_workers=1, worker_kind="process")
    for _ in loader:
        pass
    child = os.fork()
    batches = list(loader)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert {float(value) for batch in batches for value in batch[:, 0]} == {float(os.getpid())}


def kept_in_a_fork(go: int, answer: int, samples: list[torch.Tensor]) -> torch.Tensor:
    batch: torch.Tensor = default_collate(samples)
    if batch[0, 0] == 0 and os.fork() == 0:
        os.read(go, 1)
        os.write(answer, repr(batch[:, -1].tolist()).encode())
        os._exit(0)
    return batch


@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_process_forked_by_a_worker_keeps_is_not_written_again(persistent: bool) -> None:
    (go, ask), (hear, answer) = os.pipe(), os.pipe()
    loader = headrace.DataLoader(
        Made(row, 48),
        batch_size=4,
        num_workers=1,
        collate_fn=functools.partial(kept_in_a_fork, go, answer),
        persistent_workers=persistent,
        worker_kind="process",
    )
    for _ in itertools.chain(loader, loader):
        pass
    os.write(ask, b"..")
    expected = repr([0.0, 1.0, 2.0, 3.0]).encode()
    answers = b""
    while len(answers) < 2 * len(expected):
        answers += os.read(hear, 1000)
    assert answers == 2 * expected
    for file in (go, ask, hear, answer):
        os.close(file)


def test_no_memory_is_an_error_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, offset: int, nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transport.os, "posix_fallocate", full)
    loader = headrace.DataLoader(Made(row, 48), batch_size=4, num_workers=1, worker_kind="process")
    with pytest.raises(MemoryError, match=r"8,388,608 bytes of shared memory can't be allocated \(No space"):
        next(iter(loader))


def there_and_back(value: Any) -> tuple[Any, int]:
    """The batches that arrive, and the number of their segments."""
    outbox, inbox = Outbox("test"), Inbox()
    message, files = outbox.pack(0, value)
    inbox.register(message, files)
    return inbox.load(message), len(dict(message.places))


LARGE = SEGMENT_NBYTES


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(LARGE),
        torch.arange(LARGE).reshape(-1, 2).T,
        torch.arange(4 * LARGE)[LARGE : 2 * LARGE],
        torch.arange(4 * LARGE).reshape(4, -1)[1:3, ::7],
        torch.ones(1).expand(LARGE, 3),
        torch.arange(LARGE).to(torch.bfloat16),
        torch.arange(LARGE) % 2 == 0,
        torch.complex(torch.ones(LARGE), torch.zeros(LARGE)).conj(),
        torch.empty(0, 3),
        torch.tensor(5),
        torch.ones(LARGE, requires_grad=True),
        torch.nn.Parameter(torch.ones(LARGE)),
        tv_tensors.Mask(torch.ones(1, LARGE)),
        torch.eye(300).to_sparse(),
        torch.arange(LARGE).share_memory_(),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_tensors_arrive_as_they_were(tensor: torch.Tensor) -> None:
    came, _ = there_and_back({"tensor": tensor})
    came = came["tensor"]
    assert type(came) is type(tensor)
    assert (came.dtype, came.shape, came.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert came.requires_grad == tensor.requires_grad
    assert torch.equal(came.to_dense(), tensor.to_dense())
    if came.layout is torch.strided and not tensor.is_conj():
        assert came.stride() == tensor.stride()


@pytest.mark.parametrize("nbytes", [8, 5000, SEGMENT_NBYTES])
def test_tensors_of_one_storage_share_it_whatever_its_size(nbytes: int) -> None:
    whole = torch.zeros(nbytes, dtype=torch.uint8)
    (came, views), _ = there_and_back([whole, {"first": whole[: nbytes - 1], "last": whole[-nbytes + 2 :]}])
    came += 7
    assert {int(view.min()) for view in views.values()} == {7}


def test_tensors_that_share_memory_still_do_and_travel_once() -> None:
    whole = torch.zeros(LARGE)
    (came, view), segments = there_and_back([whole, whole.view(2, -1)])
    assert segments == 1
    came[0] = 7
    assert view[0, 0] == 7


def test_of_a_small_part_of_a_large_tensor_only_the_part_travels() -> None:
    came, segments = there_and_back(torch.arange(1 << 24)[LARGE : LARGE + 5])
    assert came.tolist() == list(range(LARGE, LARGE + 5))
    assert segments == 0


def test_arrays_text_and_objects_arrive() -> None:
    value = {
        "array": np.arange(LARGE),
        "fortran": np.asfortranarray(np.arange(LARGE).reshape(2, -1)),
        "fixed": np.arange(LARGE),
        "text": "a" * LARGE,
        "object": types.SimpleNamespace(rows=[np.arange(3), torch.arange(LARGE)]),
    }
    value["fixed"].flags.writeable = False  # type: ignore[attr-defined]
    came, segments = there_and_back(value)
    assert segments == 5
    assert np.array_equal(came["array"], value["array"])  # type: ignore[arg-type]
    assert came["array"].flags.writeable
    assert np.array_equal(came["fortran"], value["fortran"])  # type: ignore[arg-type]
    assert not came["fixed"].flags.writeable
    assert came["text"] == value["text"]
    assert torch.equal(came["object"].rows[1], torch.arange(LARGE))


def test_a_batch_of_more_arrays_than_files_can_be_sent_arrives() -> None:
    arrays = [np.full(LARGE, i) for i in range(transport.MAX_SEGMENTS + 50)]
    came, segments = there_and_back(arrays)
    assert segments <= transport.MAX_SEGMENTS + 1
    assert all(np.array_equal(a, b) for a, b in zip(came, arrays, strict=True))


MANY_LOADERS = """
import os, warnings
import torch, headrace
from torch.utils.data import Dataset
warnings.simplefilter("ignore")

class Rows(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.full((1 << 16,), float(index))

def held():
    resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    segments = sum("headrace-" in line for line in open("/proc/self/maps"))
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    return resident, len(os.listdir("/proc/self/fd")), segments, len(children)

before_shm = set(os.listdir("/dev/shm"))
for number in range(500):
    batches = iter(headrace.DataLoader(Rows(), 2, num_workers=1))
    for batch in batches:
        if number % 2:
            break
    del batch, batches
    if number == 99:
        before = held()
after = held()
assert after[0] - before[0] < 20, (before, after)  # MB
assert after[1:] == before[1:], (before, after)
new = set(os.listdir("/dev/shm")) - before_shm
mine = [name for name in new if "headrace" in name or str(os.getpid()) in name]
assert not mine, mine
"""


@pytest.mark.long
def test_loaders_that_are_left_in_the_middle_of_an_epoch_leave_nothing_behind() -> None:
    run_python(MANY_LOADERS, check=True)


KEEP_PART = {
    "whole": lambda images: images,
    "row": lambda images: images[1],
    "slice": lambda images: images[:, :, 3:5, ::2],
    "reshaped": lambda images: images.reshape(-1),
    "numpy": lambda images: images.numpy(),
    "detached view": lambda images: images.detach().permute(0, 2, 3, 1),
}


def copy_of(held: Any) -> torch.Tensor:
    return torch.as_tensor(held).clone()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([None, *KEEP_PART]), min_size=8, max_size=24))
def test_whatever_part_of_a_batch_is_held_stays_as_it_is(
    dataset: ImageFolder, parts: list[str | None]
) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    held: list[tuple[Any, torch.Tensor]] = []
    batches = iter(loader)
    for part in parts:
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        if part is not None:
            kept = KEEP_PART[part](batch[0])
            held.append((kept, copy_of(kept)))
        del batch
    for kept, copy in held:
        assert torch.equal(torch.as_tensor(kept), copy)


def test_dropped_memory_is_used_again(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    places = set()
    for _ in range(5):
        for images, _ in loader:
            places.add(images.data_ptr())
        del images
    assert len(places) <= 8, "four batches in flight, and two in the hands of the loop"


def test_the_budget_bounds_what_is_in_flight(dataset: ImageFolder) -> None:
    batch = 4 * 3 * 32 * 32 * 4
    for budget, most in ((1, 1), (batch, 1), (3 * batch, 3), (100 * batch, 6)):
        loader = headrace.DataLoader(
            dataset, batch_size=4, num_workers=2, memory_budget=budget, prefetch_factor=3
        )
        seen = 0
        for images, _ in loader:
            del images
            seen = max(seen, loader.stats().memory_used)
        assert seen <= max(budget, batch)
        assert seen <= most * batch


def test_slots_return_when_iterator_and_batches_are_gone(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    iterator = iter(loader)
    images, _ = next(iterator)
    assert loader.stats().memory_used > 0
    del iterator, images
    gc.collect()
    assert loader.stats().memory_used == 0
    assert loader.stats().in_flight == 0


GROWTH = """
import sys, psutil
from torchvision import transforms
from torchvision.datasets import ImageFolder
import headrace
steps = [transforms.RandomResizedCrop(96), transforms.ToTensor()]
loader = headrace.DataLoader(ImageFolder(sys.argv[1], transforms.Compose(steps)), batch_size=8, num_workers=2)
def epochs(n):
    for _ in range(n):
        for images, labels in loader:
            pass
    return psutil.Process().memory_info().rss
epochs(5)
before = epochs(5)
print(epochs(10) / before)
"""


MILLION = """
import pickle, sys, psutil
from torchvision import transforms
from torchvision.datasets import ImageFolder
import headrace
steps = [transforms.RandomResizedCrop(32), transforms.ToTensor()]
dataset = ImageFolder(sys.argv[1], transforms.Compose(steps))
dataset.samples = [dataset.samples[i % len(dataset.samples)] for i in range(1_281_167)]
dataset.targets = [label for _, label in dataset.samples]
loader = headrace.DataLoader(dataset, batch_size=64, num_workers=2, shuffle=True)
next(iter(headrace.DataLoader(ImageFolder(sys.argv[1], transforms.Compose(steps)), batch_size=4)))
before = psutil.Process().memory_info().rss
images, labels = next(iter(loader))
after = psutil.Process().memory_info().rss
print(len(pickle.dumps(loader.plan().native.source)), after - before)
"""


def run(code: str, *arguments: str) -> list[float]:
    done = run_python(code, *arguments)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


def test_memory_does_not_grow_with_epochs(folder: Path) -> None:
    (ratio,) = run(GROWTH, str(folder))
    assert ratio < 1.02


def test_a_million_files_are_one_flat_buffer(folder: Path) -> None:
    source_bytes, growth = run(MILLION, str(folder))
    assert source_bytes < 200e6
    assert growth < 400e6  # the list of indices that torch's sampler makes (41 MB) and a second plan included
