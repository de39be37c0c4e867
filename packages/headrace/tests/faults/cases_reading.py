"""What a loader makes of storage that fails; run by test_storage.py, with faults.c preloaded."""

from __future__ import annotations

import errno
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace._native import ffi
from headrace.engine import native, native_stream
from support.faults import Faults
from support.jpegs import image_folder
from support.python import run_python

COUNT, BAD = 12, 5

# The rule, and what the error's cause says.
FAILURES: dict[str, tuple[str, str]] = {
    "input/output error": (f"read {errno.EIO}", "Input/output error"),
    "stale handle": (f"read {errno.ESTALE}", "Stale file handle"),
    "permission lost": (f"open {errno.EACCES}", "Permission denied"),
    "too many open files": (f"open {errno.EMFILE}", "Too many open files"),
    "removed": (f"open {errno.ENOENT}", "No such file"),
    "cut short": ("cut 300", "OSError|SyntaxError|UnidentifiedImageError"),
    "empty": ("cut 0", "cannot identify"),
}
NATIVE = transforms.Compose([transforms.Resize((24, 24)), transforms.PILToTensor()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("pictures"), COUNT, side=60)


@pytest.fixture(scope="module")
def pack(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(headrace.pack(folder, tmp_path_factory.mktemp("packed") / "pack", shard_size=10_000).path)


def everything(loader: headrace.DataLoader) -> tuple[torch.Tensor, list[int]]:
    batches = list(loader)
    return torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches]).tolist()


def check_error(error: BaseException, path: str, cause: str) -> None:
    assert isinstance(error, headrace.SampleError)
    assert (error.index, error.path) == (BAD, path)
    assert any(part in error.cause for part in cause.split("|")), error.cause
    assert path in str(error)
    assert f"sample {BAD}" in str(error)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("failure", FAILURES)
def test_one_file_fails(folder: Path, faults: Faults, failure: str, workers: int) -> None:
    dataset = ImageFolder(str(folder), NATIVE)
    path, (rule, cause) = dataset.samples[BAD][0], FAILURES[failure]
    good = [i for i in range(COUNT) if i != BAD]
    expected = torch.stack([dataset[i][0] for i in range(COUNT)])
    faults(f"{rule} {path}")

    loader = headrace.DataLoader(dataset, 4, num_workers=workers)
    assert loader.plan().native is not None
    with pytest.raises(headrace.SampleError) as caught:
        everything(loader)
    check_error(caught.value, path, cause)

    loader = headrace.DataLoader(dataset, 4, num_workers=workers, on_error="skip")
    images, labels = everything(loader)
    assert labels == [dataset.targets[i] for i in good]
    assert torch.equal(images, expected[good])
    assert [(f.index, f.path, f.action) for f in loader.stats().failures] == [(BAD, path, "skipped")]

    loader = headrace.DataLoader(dataset, 4, num_workers=workers, on_error="replace")
    images, labels = everything(loader)
    assert torch.equal(images, expected[[i + (i == BAD) for i in range(COUNT)]])
    assert [(f.index, f.path, f.action) for f in loader.stats().failures] == [(BAD, path, "replaced")]


def test_one_file_fails_in_a_worker_process(folder: Path, faults: Faults) -> None:
    first, last = NATIVE.transforms
    dataset = ImageFolder(str(folder), transforms.Compose([first, python_step, last]))
    path = dataset.samples[BAD][0]
    faults(f"read {errno.EIO} {path}")
    loader = headrace.DataLoader(dataset, 4, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(OSError, match="Input/output error") as caught:
        everything(loader)
    if sys.version_info >= (3, 11):
        assert f"sample {BAD} ({path})" in caught.value.__notes__[0]
    loader = headrace.DataLoader(dataset, 4, num_workers=1, multiprocessing_context="fork", on_error="skip")
    _, labels = everything(loader)
    assert labels == [target for i, target in enumerate(dataset.targets) if i != BAD]
    assert [(f.index, f.path) for f in loader.stats().failures] == [(BAD, path)]


def python_step(image: Any) -> Any:
    return image.rotate(0)


@pytest.mark.parametrize("failure", ["input/output error", "permission lost", "removed", "empty"])
def test_a_shard_fails(pack: Path, faults: Faults, failure: str) -> None:
    dataset = headrace.PackedDataset(pack, NATIVE)
    shard = dataset.source.shard(BAD)
    lost = [i for i in range(COUNT) if dataset.source.shard(i) == shard]
    assert 0 < len(lost) < COUNT
    rule, cause = FAILURES[failure]
    faults(f"{rule} {shard}")
    loader = headrace.DataLoader(dataset, 1, num_workers=2, sampler=[BAD])
    with pytest.raises(headrace.SampleError) as caught:
        everything(loader)
    assert caught.value.index == BAD
    for part in (Path(shard).name, dataset.key(BAD)):
        assert part in str(caught.value)
    assert (cause if failure != "empty" else "it was cut short") in caught.value.cause
    loader = headrace.DataLoader(dataset, 4, num_workers=2, on_error="skip")
    assert len(everything(loader)[1]) == COUNT - len(lost)
    assert [f.index for f in loader.stats().failures] == lost


def test_short_reads_are_gone_on_with(folder: Path, pack: Path, faults: Faults) -> None:
    expected = everything(headrace.DataLoader(ImageFolder(str(folder), NATIVE), 4, num_workers=2))
    faults(f"short 101 {folder}", f"short 101 {pack}")
    for dataset in (ImageFolder(str(folder), NATIVE), headrace.PackedDataset(pack, NATIVE)):
        images, labels = everything(headrace.DataLoader(dataset, 4, num_workers=2))
        assert torch.equal(images, expected[0])
        assert labels == expected[1]


def test_an_error_that_does_not_last_costs_no_sample(folder: Path, faults: Faults) -> None:
    dataset = ImageFolder(str(folder), NATIVE)
    faults(f"once {errno.EIO} {dataset.samples[BAD][0]}")
    loader = headrace.DataLoader(dataset, 4, num_workers=2)
    assert len(everything(loader)[1]) == COUNT
    assert not loader.stats().failures
    assert not faults.path.read_text(), "it has failed once"


@pytest.mark.parametrize("rule", ["hang", "wait"])
@pytest.mark.parametrize("timeout", [0, 0.5])
def test_a_mount_that_hangs_is_named_and_may_come_back(
    folder: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch, timeout: float, rule: str
) -> None:
    monkeypatch.setattr(native_stream, "STUCK_SECONDS", 0.5)
    dataset = ImageFolder(str(folder), NATIVE)
    path = dataset.samples[BAD][0]
    faults(f"{rule} 0 {path}", *([f"cut 300 {path}"] if rule == "wait" else []))
    iterator = iter(headrace.DataLoader(dataset, 4, num_workers=2, timeout=timeout))
    assert len(next(iterator)[1]) == 4
    with pytest.raises(
        RuntimeError, match=r"timed out after 0\.5 seconds, waiting for sample 5 \("
    ) as caught:
        next(iterator)
    assert path in str(caught.value)
    faults()
    assert len(next(iterator)[1]) == 4


def test_a_loader_ends_although_its_read_never_does(
    folder: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "PATIENCE_AT_END", 0.2)
    dataset = ImageFolder(str(folder), NATIVE)
    faults(f"hang 0 {dataset.samples[BAD][0]}")
    iterator = iter(headrace.DataLoader(dataset, 4, num_workers=2, timeout=0.5))
    next(iterator)
    ended = threading.Event()

    def leave(held: list[Any]) -> None:
        held.clear()
        ended.set()

    held = [iterator]
    del iterator
    threading.Thread(target=leave, args=(held,), daemon=True).start()
    assert ended.wait(60)
    # Native threads may still write there: whatever they need is kept.
    [stuck] = ffi._unfinished
    assert stuck.undecided().tolist() == [BAD - 4]
    faults()
    while not stuck.wait(100):
        pass
    ffi._unfinished.clear()
    kept: Any = stuck._keep
    assert torch.equal(kept[-1][BAD - 4], dataset[BAD][0])


def test_a_process_ends_although_its_reads_never_do(folder: Path, faults: Faults) -> None:
    script = """
        import sys, headrace
        from torchvision import transforms
        from torchvision.datasets import ImageFolder
        from headrace.engine import native, thread_pool

        native.PATIENCE_AT_END = thread_pool.PATIENCE_SECONDS = 0.2
        steps = transforms.Compose([transforms.Resize((24, 24)), transforms.PILToTensor()])
        dataset = ImageFolder(sys.argv[1], steps)
        # A batch for each of them.
        loader = headrace.DataLoader(dataset, 3, num_workers=2, timeout=0.5, sampler=[3, 4, 5])
        other = headrace.DataLoader(dataset, 3, num_workers=2, timeout=0.5, sampler=[1, 2, 3])
        for each in (loader, other):
            try:
                next(iter(each))
            except RuntimeError as error:
                print(error)
    """
    by_pillow, natively = (ImageFolder(str(folder)).samples[i][0] for i in (BAD - 2, BAD))
    faults(f"hang 0 {natively}", f"wait 0 {by_pillow}", f"cut 300 {by_pillow}")
    done = run_python(textwrap.dedent(script), folder, teardown=True)
    assert done.returncode == 0, done.stderr
    assert natively in done.stdout
    assert by_pillow in done.stdout
