"""A bad sample is named, skipped or replaced; bad arguments say what is allowed."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from support.datasets import Made, Rows

BAD = (3, 17)


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> ImageFolder:
    """30 samples, of which 3 is text and 17 was cut short."""
    root = tmp_path / "damaged"
    shutil.copytree(folder, root)
    steps = [transforms.Resize((24, 24)), transforms.PILToTensor()]
    dataset = ImageFolder(str(root), transforms.Compose(steps))
    Path(dataset.samples[3][0]).write_text("no picture at all")
    cut = Path(dataset.samples[17][0])
    cut.write_bytes(cut.read_bytes()[:300])
    return dataset


class Brittle(Dataset[Any]):
    """30 numbers, of which some can't be had."""

    def __init__(self, bad: tuple[int, ...] = BAD) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index in self.bad:
            raise KeyError("it is gone")
        return torch.full((2,), float(index)), index


def labels_and_images(loader: headrace.DataLoader) -> tuple[list[int], torch.Tensor]:
    batches = list(loader)
    return torch.cat([b[1] for b in batches]).tolist(), torch.cat([b[0] for b in batches])


def test_raise_names_index_path_cause_and_remedy(damaged: ImageFolder) -> None:
    with pytest.raises(headrace.SampleError) as caught:
        list(headrace.DataLoader(damaged, batch_size=4, num_workers=2))
    error = caught.value
    assert (error.index, error.path) == (3, damaged.samples[3][0])
    assert "UnidentifiedImageError" in error.cause
    for part in ("sample 3", damaged.samples[3][0], "on_error='skip'"):
        assert part in str(error)
    assert isinstance(error, OSError)
    assert error.__cause__ is not None


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_the_memory_of_a_batch_with_a_bad_sample_is_freed_at_once(
    damaged: ImageFolder, on_error: Any
) -> None:
    loader = headrace.DataLoader(damaged, batch_size=4, num_workers=2, on_error=on_error)
    list(loader)
    gc.collect()
    gc.disable()
    try:
        list(loader)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kept = [value for value in gc.garbage if isinstance(value, torch.Tensor) and len(value) == 4]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not kept


def test_after_an_error_the_epoch_goes_on(damaged: ImageFolder) -> None:
    iterator = iter(headrace.DataLoader(damaged, batch_size=1, num_workers=2))
    seen = errors = 0
    while True:
        try:
            next(iterator)
            seen += 1
        except StopIteration:
            break
        except headrace.SampleError:
            errors += 1
    assert (seen, errors) == (28, 2)


def test_a_missing_file_is_named(damaged: ImageFolder) -> None:
    Path(damaged.samples[0][0]).unlink()
    with pytest.raises(headrace.SampleError, match=r"sample 0 .*FileNotFoundError"):
        next(iter(headrace.DataLoader(damaged, batch_size=1)))


@pytest.mark.parametrize("workers", [0, 2])
def test_skip_leaves_out_just_the_bad_samples(damaged: ImageFolder, workers: int, caplog: Any) -> None:
    loader = headrace.DataLoader(damaged, batch_size=4, num_workers=workers, on_error="skip")
    with caplog.at_level(logging.WARNING, "headrace"):
        labels, images = labels_and_images(loader)
        labels_and_images(loader)
    good = [i for i in range(30) if i not in BAD]
    assert labels == [damaged.targets[i] for i in good]
    assert torch.equal(images, torch.stack([damaged[i][0] for i in good]))
    failures = loader.stats().failures
    assert [(f.index, f.action) for f in failures] == [(3, "skipped"), (17, "skipped")] * 2
    assert failures[0].path == damaged.samples[3][0]
    assert len(caplog.records) == 2, "each bad sample is logged once"
    assert "4 samples skipped" in str(loader.stats())


def test_replace_takes_the_next_sample_that_loads(damaged: ImageFolder) -> None:
    loader = headrace.DataLoader(damaged, batch_size=4, num_workers=2, on_error="replace")
    labels, images = labels_and_images(loader)
    instead = [i + 1 if i in BAD else i for i in range(30)]
    assert labels == [damaged.targets[i] for i in instead]
    assert torch.equal(images, torch.stack([damaged[i][0] for i in instead]))
    assert [(f.index, f.action) for f in loader.stats().failures] == [(3, "replaced"), (17, "replaced")]


def test_a_batch_of_nothing_but_bad_samples_is_not_given_out(damaged: ImageFolder) -> None:
    loader = headrace.DataLoader(damaged, batch_sampler=[[0], [3, 17], [1]], on_error="skip")
    assert [len(labels) for _, labels in loader] == [1, 1]


WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "worker_kind": "thread"},
]


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_python_datasets_name_the_sample_and_the_other_batches_come(workers: dict[str, Any]) -> None:
    batches = iter(headrace.DataLoader(Brittle(), batch_size=4, **workers))
    with pytest.raises(KeyError) as caught:
        next(batches)
    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    if hasattr(caught.value, "add_note"):  # Python 3.11
        assert "sample 3" in told
    assert "it is gone" in told
    assert next(batches)[1].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("workers", WORKERS, ids=str)
@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_python_datasets_skip_and_replace(on_error: Any, workers: dict[str, Any]) -> None:
    loader = headrace.DataLoader(Brittle(), batch_size=4, on_error=on_error, **workers)
    labels, images = labels_and_images(loader)
    instead = {"skip": [i for i in range(30) if i not in BAD], "replace": [i + (i in BAD) for i in range(30)]}
    assert labels == instead[on_error]
    assert images[:, 0].tolist() == labels
    action = {"skip": "skipped", "replace": "replaced"}[on_error]
    assert [(f.index, f.action) for f in loader.stats().failures] == [(3, action), (17, action)]
    assert "KeyError" in loader.stats().failures[0].cause


class ByName(Brittle):
    """Samples are asked for by name, or by lists of indices; one can't be read."""

    def __getitem__(self, index: Any) -> Any:
        if index in ("b", [2, 3]):
            raise KeyError("it is gone")
        return torch.zeros(1), len(index)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize(
    ("options", "index"),
    [
        ({"batch_sampler": [["a", "b"], ["c"]]}, "b"),
        ({"sampler": BatchSampler(range(6), 2, drop_last=False), "batch_size": None}, [2, 3]),
    ],
)
def test_samples_without_a_number_are_skipped(
    options: dict[str, Any], index: Any, on_error: Any, workers: int, caplog: Any
) -> None:
    loader = headrace.DataLoader(ByName(), num_workers=workers, on_error=on_error, **options)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert len(list(loader)) == 2
    assert [(f.index, f.action) for f in loader.stats().failures] == [(index, "skipped")]
    assert f"sample {index} skipped: KeyError" in caplog.text


def test_python_datasets_skip_whole_batches_and_single_samples() -> None:
    loader = headrace.DataLoader(Brittle((0, 1, 2, 3)), batch_size=2, num_workers=0, on_error="skip")
    assert len(list(loader)) == 13
    assert len(list(headrace.DataLoader(Brittle(), batch_size=None, on_error="skip"))) == 28


def test_every_sample_bad() -> None:
    loader = headrace.DataLoader(Brittle(tuple(range(30))), batch_size=8, num_workers=0, on_error="replace")
    assert list(loader) == []
    assert len(loader.stats().failures) == 30


def test_an_index_outside_the_dataset(damaged: ImageFolder) -> None:
    with pytest.raises(IndexError, match="index 30 is out of range for 30 samples"):
        list(headrace.DataLoader(damaged, sampler=[0, 30], batch_size=2))


BAD_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"on_error": "ignore"}, r"on_error \('ignore'\) must be 'raise', 'skip' or 'replace'"),
    ({"num_workers": "many"}, r"num_workers \('many'\) must be 'auto' or an int"),
    ({"num_workers": True}, "num_workers"),
    ({"pin_memory": "yes"}, r"pin_memory \('yes'\) must be 'auto', True or False"),
    ({"memory_budget": 0}, r"memory_budget \(0\) must be a number of bytes, 1 or more"),
    ({"seed": -1}, r"seed \(-1\) must be an int from 0"),
    ({"dtype": torch.float64}, r"dtype \(torch.float64\) must be one of"),
    ({"memory_format": torch.preserve_format}, "memory_format"),
    ({"decoder": "pillow"}, "decoder is no argument of DataLoader any more: .* HEADRACE_DECODERS"),
    ({"on_worker_death": "raise"}, "on_worker_death is no argument .* is always replaced"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS, ids=lambda value: str(value)[:30])
def test_bad_arguments_say_what_is_allowed(
    damaged: ImageFolder, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(headrace.ConfigError, match=message):
        headrace.DataLoader(damaged, **arguments)


def test_an_unknown_decoder_in_the_environment_is_an_error(
    damaged: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DECODERS", "pillow,fastest")
    with pytest.raises(headrace.ConfigError, match=r"\('pillow,fastest'\) must be of headrace, libjpeg-crop"):
        iter(headrace.DataLoader(damaged))


def test_decoders_are_restricted_by_the_environment(
    damaged: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DECODERS", "pillow")
    loader = headrace.DataLoader(damaged, on_error="skip")
    assert "\ndecoders: none, Pillow decodes" in loader.explain()
    assert list(loader)
    decoders = {name for name, count in loader.stats().decoded_by.items() if count}
    assert decoders == {"pillow"}


def test_an_epoch_that_is_not_known_cannot_be_replayed(damaged: ImageFolder) -> None:
    loader = headrace.DataLoader(damaged)
    with pytest.raises(headrace.ConfigError, match="seed"):
        loader.random_key()
    with pytest.raises(headrace.ConfigError, match="must be 0 or more"):
        loader.set_epoch(-1)


def test_datasets_of_ours_that_run_as_python_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_text("no picture at all")
    loader = headrace.DataLoader(headrace.ImageDataset([path]), collate_fn=len, num_workers=0)
    assert loader.plan().native is None
    with pytest.raises(OSError, match="cannot identify") as caught:
        list(loader)
    told = (str(caught.value), *getattr(caught.value, "__notes__", ()))
    if len(told) > 1 or isinstance(caught.value, headrace.SampleError):  # Python 3.11 has notes
        assert any("sample 0" in each and str(path) in each for each in told)
    loader = headrace.DataLoader(headrace.ImageDataset([path]), num_workers=0, on_error="skip")
    assert list(loader) == []
    assert loader.stats().failures[0].path == str(path)


def interrupted_once(index: int) -> float:
    if index == 9 and not interruptions:
        interruptions.append(index)
        signal.raise_signal(signal.SIGINT)
    return torch.rand(()).item() + index


interruptions: list[int] = []


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"batch_size": None}, {"on_error": "skip"}], ids=str)
def test_a_batch_that_ctrl_c_broke_off_is_made_when_it_is_asked_for_again(options: dict[str, Any]) -> None:
    """torch's loader continues with the one after it."""
    loader = headrace.DataLoader(Made(interrupted_once, 20), **{"batch_size": 4, "num_workers": 0, **options})
    interruptions.clear()
    batches = iter(loader)
    got: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        got.extend(batches)
    state = loader.state_dict()
    got.extend(batches)
    values = torch.cat([torch.as_tensor(batch).reshape(-1) for batch in got])
    assert values.int().tolist() == list(range(20))
    if "seed" in options:
        loader.load_state_dict(state)
        assert torch.equal(torch.cat(list(loader)), values[8:])


def test_ctrl_c_while_a_worker_is_waited_for_loses_nothing() -> None:
    loader = headrace.DataLoader(Rows(6, 0.3), batch_size=2, num_workers=1, worker_kind="process")
    batches = iter(loader)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    state = loader.state_dict()
    assert torch.cat(list(batches)).flatten().tolist() == list(range(6))
    loader.load_state_dict(state)
    assert torch.cat(list(loader)).flatten().tolist() == list(range(6))
