"""ImageDataset: an ordinary torch dataset whose list of files is the user's."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets.folder import pil_loader

from headrace.errors import ConfigError
from headrace.sources.image import ImageDataset


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A JPEG, a PNG with alpha and a palette GIF."""
    made = [tmp_path / name for name in ("a.jpg", "b.png", "c.gif")]
    rng = np.random.default_rng(1)
    rgba = Image.fromarray(rng.integers(0, 256, (9, 7, 4), dtype=np.uint8))
    rgba.convert("RGB").save(made[0])
    rgba.save(made[1])
    rgba.convert("P").save(made[2])
    return made


def test_reads_as_torchvisions_pil_loader(files: list[Path]) -> None:
    dataset = ImageDataset(files, [3, 4, 5])
    for i, path in enumerate(files):
        image, label = dataset[i]
        assert image.mode == "RGB"
        assert image.tobytes() == pil_loader(path).tobytes()
        assert label == i + 3


def test_length_and_negative_indices(files: list[Path]) -> None:
    dataset = ImageDataset(files, [3, 4, 5])
    assert len(dataset) == 3
    assert [label for _, label in dataset] == [3, 4, 5]  # type: ignore[attr-defined]  # IndexError ends the old protocol of iteration
    assert dataset[-1][1] == 5
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"index {index} is out of range for 3 samples"):
            dataset[index]


def test_transforms_are_called(files: list[Path]) -> None:
    dataset = ImageDataset(files[:1], [7], lambda image: image.size, lambda label: -label)
    assert dataset[0] == ((7, 9), -7)


def test_labels_default_to_zero_and_may_be_arrays(files: list[Path]) -> None:
    assert [ImageDataset(files)[i][1] for i in range(3)] == [0, 0, 0]
    for labels in (np.array([1, 2, 3], np.int32), torch.tensor([1, 2, 3])):
        assert [type(label) for _, label in ImageDataset(files, labels)] == [int] * 3  # type: ignore[arg-type, attr-defined]


def test_missing_files_are_counted_and_the_first_few_named(files: list[Path], tmp_path: Path) -> None:
    missing = [tmp_path / f"missing{i}.jpg" for i in range(7)]
    with pytest.raises(FileNotFoundError) as caught:
        ImageDataset([*files, *missing], check_files=True)
    text = str(caught.value)
    assert text.startswith(f"7 of 10 files are missing: {missing[0]}, {missing[1]}")
    assert f"{missing[4]} and 2 more" in text
    assert str(missing[5]) not in text
    assert text.endswith("Correct the list, or pass check_files=False to find out while loading.")
    assert len(ImageDataset(missing)) == 7


def test_construction_asks_the_file_system_nothing(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*arguments: object, **options: object) -> None:
        raise AssertionError(f"the file system was asked for {arguments}")

    with monkeypatch.context() as patch:
        for name in ("access", "stat", "lstat", "open"):
            patch.setattr(os, name, asked)
        dataset = ImageDataset([*files, tmp_path / "missing.jpg"])
    assert len(dataset) == 4
    with pytest.raises(FileNotFoundError, match=r"missing\.jpg"):
        dataset[3]


def test_a_name_that_isnt_text_can_be_printed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"\\udcff\.jpg") as caught:
        ImageDataset([os.fsencode(tmp_path) + b"/\xff.jpg"], check_files=True)
    str(caught.value).encode("utf-8")


def test_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"1 of 1 files are unreadable or a folder: {tmp_path}"):
        ImageDataset([tmp_path], check_files=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_files_are_refused(files: list[Path]) -> None:
    files[1].chmod(0)
    with pytest.raises(ConfigError, match=f"1 of 3 files are unreadable or a folder: {files[1]}"):
        ImageDataset(files, check_files=True)


def test_labels_must_fit(files: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"3 paths and 2 labels: there must be one label per path\."):
        ImageDataset(files, [1, 2])
    with pytest.raises(ConfigError, match=r"the target of sample 1 is float, not int\. Pass paths as"):
        ImageDataset(files, [1, 2.5, 3])  # type: ignore[list-item]
