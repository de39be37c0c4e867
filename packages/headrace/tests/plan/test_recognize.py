"""Datasets: known ones are taken apart, everything else is refused by name."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import pil_loader
from torchvision.datasets.vision import StandardTransform

from headrace._native import ffi
from headrace._native.decoders import FORMATS, missing_formats
from headrace.plan.recognize import recognize_dataset
from headrace.sources.kinds import InTensors, Recognized, Refusal
from headrace.sources.kinds.lookup import OTHER_CLASS, STREAMED
from support.deferred_images import needs_native
from support.images import image_folder


def recognized(dataset: Any) -> Recognized:
    result = recognize_dataset(dataset)
    assert isinstance(result, Recognized), result
    return result


def refused(dataset: Any) -> Refusal:
    result = recognize_dataset(dataset)
    assert isinstance(result, Refusal), result
    return result


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return image_folder(tmp_path / "data", 5)


def entries(result: Recognized) -> list[tuple[str, int]]:
    return [(result.source.path(i), result.source.label(i)) for i in range(len(result.source))]  # type: ignore[misc]


def test_image_folder(root: Path) -> None:
    dataset = ImageFolder(root, transform=len, target_transform=abs)
    result = recognized(dataset)
    assert entries(result) == dataset.samples
    assert (result.transform, result.target_transform) == (len, abs)
    assert (result.what, result.note) == ("ImageFolder(n=5)", "5 of 5 files are JPEG by extension")


def test_the_attribute_that_is_called_is_the_one_that_is_read(root: Path) -> None:
    """`__getitem__` looks at transform and target_transform; `transforms` is for other datasets."""
    dataset = ImageFolder(root, transform=len)
    dataset.transforms = StandardTransform(abs, abs)
    assert recognized(dataset).transform is len
    dataset.samples = dataset.samples[:2]
    assert recognized(dataset).what == "ImageFolder(n=2)"


@pytest.mark.parametrize(
    "indices",
    [
        [3, 0, 0, -1],
        (2,),
        range(1, 4),
        np.array([4, 1], np.int32),
        torch.tensor([2, 3]),
        [],
        np.array([]),
    ],
)
def test_a_subset_has_the_samples_of_its_indices(root: Path, indices: Any) -> None:
    dataset = ImageFolder(root, transform=len)
    result = recognized(Subset(dataset, indices))
    assert entries(result) == [dataset.samples[int(i)] for i in indices]
    assert result.what == f"Subset(n={len(indices)}) of ImageFolder(n=5)"
    assert result.transform is len


@pytest.mark.parametrize(
    ("indices", "reason"),
    [
        ([0, 5], "index 5 is out of range for 5 samples"),
        ([0.0], "aren't ints"),
        ([True], "aren't ints"),
        (["0"], "aren't ints"),
    ],
)
def test_subsets_that_cant_be(root: Path, indices: Any, reason: str) -> None:
    assert reason in refused(Subset(ImageFolder(root), indices)).reason


def test_a_concatenation_has_the_samples_of_all_its_parts(root: Path) -> None:
    first, second = ImageFolder(root, transform=len), ImageFolder(root, transform=len)
    nested: ConcatDataset[Any] = ConcatDataset([Subset(first, [3, 1]), ConcatDataset([second])])
    result = recognized(Subset(nested, [5, 0, 2, -1]))
    assert entries(result) == [second.samples[3], first.samples[3], second.samples[0], second.samples[4]]
    assert result.transform is len
    what = "Subset(n=4) of ConcatDataset(n=7) of Subset(n=2) of ImageFolder(n=5) and 1 more"
    assert result.what == what


def test_concatenations_that_cant_be(root: Path) -> None:
    plain, changed = ImageFolder(root), ImageFolder(root)
    together: ConcatDataset[Any] = ConcatDataset([plain, changed])
    changed.samples = changed.samples[:-1]
    assert "another length" in refused(together).reason
    assert "several transforms" in refused(ConcatDataset([plain, ImageFolder(root, len)])).reason
    targets = ImageFolder(root, target_transform=len)
    assert "several target_transforms" in refused(ConcatDataset([plain, targets])).reason
    other = refused(ConcatDataset([plain, TensorDataset(torch.zeros(3))]))
    assert other.reason == "only data sets of image files are read natively one after another"
    assert "a subclass of ConcatDataset" in refused(MyConcatenation([plain])).reason


class MyConcatenation(ConcatDataset[Any]):
    pass


def my_loader(path: str) -> Any:
    return pil_loader(path)


def test_another_loader_is_refused_with_its_place(root: Path) -> None:
    refusal = refused(ImageFolder(root, loader=my_loader))
    line = my_loader.__code__.co_firstlineno
    assert refusal.what == "ImageFolder(n=5)"
    assert refusal.reason.startswith("has a loader of its own, my_loader (")
    assert refusal.reason.endswith(f"test_recognize.py:{line}), which native code can't call")


def test_another_image_backend_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision, "_image_backend", "accimage")
    assert refused(ImageFolder(root)).reason == "torchvision's image backend is accimage, not PIL"
    recognized(ImageFolder(root, loader=pil_loader))


class Cached(ImageFolder):
    """A subclass that changes what a sample is."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


class Renamed(ImageFolder):
    """A subclass that changes nothing."""


def test_subclasses_are_refused_by_name_and_place(root: Path) -> None:
    refusal = refused(Cached(root))
    assert refusal.what.startswith("Cached (")
    assert "test_recognize.py:" in refusal.what
    assert (
        refusal.reason
        == "a subclass of ImageFolder that overrides __getitem__ may return anything: runs as written"
    )
    assert refused(Renamed(root)).reason == "a subclass of ImageFolder may return anything: runs as written"


class MySubset(Subset[Any]):
    """A subclass of the wrapper."""


def test_a_subclass_of_subset_is_refused(root: Path) -> None:
    refusal = refused(MySubset(ImageFolder(root), [0]))
    assert refusal.reason == "a subclass of Subset may return anything: runs as written"


def test_a_class_that_was_tampered_with_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFolder, "__getitem__", my_getitem)
    line = my_getitem.__code__.co_firstlineno
    reason = refused(ImageFolder(root)).reason
    assert reason.startswith("its __getitem__ was replaced by my_getitem (")
    assert reason.endswith(f"test_recognize.py:{line})")


def my_getitem(_self: Any, index: int) -> Any:
    return index


def test_a_wrapper_that_copies_the_name_of_what_it_wraps_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = functools.wraps(ImageFolder.__getitem__)(lambda _self, index: index)
    monkeypatch.setattr(ImageFolder, "__getitem__", wrapper)
    assert refused(ImageFolder(root)).reason.startswith("its __getitem__ was replaced by ")


def test_a_folder_that_makes_whole_batches_itself_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFolder, "__getitems__", my_getitem, raising=False)
    assert refused(ImageFolder(root)).reason.startswith("its __getitems__ is ")


def test_a_subset_of_what_is_refused_is_refused(root: Path) -> None:
    refusal = refused(Subset(Cached(root), [0]))
    assert refusal.what.startswith("Subset of Cached (")
    assert "overrides __getitem__" in refusal.reason


class Stream(IterableDataset[int]):
    """No index at all."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


def test_other_datasets_are_refused(root: Path) -> None:
    rows = recognize_dataset(TensorDataset(torch.zeros(3)))
    assert isinstance(rows, InTensors)
    assert rows.what == "TensorDataset(n=3)"
    assert refused([1, 2]) == Refusal("list", OTHER_CLASS)
    assert refused(Stream()).reason == STREAMED


def test_odd_targets_are_refused(root: Path) -> None:
    dataset = ImageFolder(root)
    dataset.samples = [(path, float(label)) for path, label in dataset.samples]
    assert refused(dataset).reason == "the target of sample 0 is float, not int"
    dataset.samples = [("a.jpg", 0, 1)]  # type: ignore[list-item]
    assert "unpack" in refused(dataset).reason


def test_folders_of_other_formats_are_left_to_pillow(tmp_path: Path) -> None:
    needs_native("PNG")
    needs_native("WEBP")
    dataset = ImageFolder(image_folder(tmp_path, 5, ".bmp"))
    assert refused(dataset).reason == (
        "0 of 5 files are JPEG or PNG or WEBP by extension: decoded by Pillow in worker processes instead"
    )


def test_files_of_other_formats_are_left_to_pillow_one_by_one(root: Path) -> None:
    needs_native("PNG")
    needs_native("WEBP")
    dataset = ImageFolder(root)
    jpegs = [("a.jpg", 0)] * 9
    dataset.samples = [*jpegs, ("b.bmp", 0)]
    assert recognized(dataset).note == "9 of 10 files are JPEG by extension; the others are decoded by Pillow"
    dataset.samples = [("a.jpg", 0), *[("b.bmp", 0)] * 8]
    assert recognized(dataset).note == "1 of 9 files are JPEG by extension; the others are decoded by Pillow"
    dataset.samples = [("a.PNG", 0), ("b.png", 0)]
    assert recognized(dataset).note == "2 of 2 files are PNG by extension"
    dataset.samples = [*jpegs, ("b.png", 0), ("c.webp", 0)]
    assert recognized(dataset).note == "of 11 files 9 JPEG, 1 PNG, 1 WEBP by extension"
    dataset.samples.append(("d.tiff", 0))
    assert recognized(dataset).note == (
        "of 12 files 9 JPEG, 1 PNG, 1 WEBP by extension; the others are decoded by Pillow"
    )


def test_a_build_without_libdeflate_leaves_png_files_to_pillow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ffi, "decoder_names", lambda: (*FORMATS["JPEG"], "libwebp"))
    assert missing_formats() == "built without libdeflate: PNG files are decoded by Pillow"
    dataset = ImageFolder(image_folder(tmp_path, 5, ".png"))
    assert refused(dataset).reason == (
        "0 of 5 files are JPEG or WEBP by extension: decoded by Pillow in worker processes instead"
    )
    dataset.samples = [("a.jpg", 0), ("b.png", 0)]
    assert recognized(dataset).note == "1 of 2 files are JPEG by extension; the others are decoded by Pillow"
