"""The index of entry points: complete, incremental, resumable, never believed of a file that changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, RandomResizedCrop, ToTensor

import headrace
import headrace.testing
from headrace.packs import index
from headrace.packs.index import build_entry_index
from headrace.sources.entry_index import EntryIndex
from headrace.sources.folder import ENTRIES_FILE, ImageSource, find_entry_points

TRANSFORM = Compose([RandomResizedCrop(48, scale=(0.05, 0.3)), ToTensor()])
FILES = 9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes of three noisy images, large enough to have entry points."""
    rng = np.random.default_rng(7)
    for i in range(FILES):
        place = tmp_path / "data" / f"class{i % 3}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (180 + 7 * i, 240 - 5 * i, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{i}.jpg", quality=85)
    return tmp_path / "data"


def loader_of(folder: Path) -> headrace.DataLoader:
    return headrace.DataLoader(ImageFolder(str(folder), TRANSFORM), batch_size=4, num_workers=2, seed=3)


def note_of(loader: headrace.DataLoader) -> str:
    """What the plan says of the data."""
    return loader.plan().steps()[0][1].reason


def assert_equals_torchvision(loader: headrace.DataLoader) -> None:
    images = torch.cat([images for images, _ in loader])
    for i, image in enumerate(images):
        assert torch.equal(image, headrace.testing.replay(loader, i)), f"sample {i} differs"


def test_every_file_gets_entry_points_within_two_percent(folder: Path) -> None:
    summary = build_entry_index(folder)
    assert (summary.samples, summary.indexed, summary.reused) == (FILES, FILES, 0)
    for name, size, _, entries in EntryIndex(folder / ENTRIES_FILE).rows():
        assert size == (folder / os.fsdecode(name)).stat().st_size
        assert 0 < len(entries) <= 0.02 * size


def test_pixels_are_the_same_with_entry_points(folder: Path) -> None:
    before = torch.cat([images for images, _ in loader_of(folder)])
    build_entry_index(folder)
    loader = loader_of(folder)
    assert f"entry points for {FILES} of {FILES} files" in note_of(loader)
    assert torch.equal(torch.cat([images for images, _ in loader]), before)
    assert_equals_torchvision(loader)


def test_a_subset_finds_the_entry_points_of_its_own_files(folder: Path) -> None:
    build_entry_index(folder)
    subset = Subset(ImageFolder(str(folder), TRANSFORM), [8, 2, 2, 5])
    loader = headrace.DataLoader(subset, batch_size=4, num_workers=1, seed=3)
    assert "entry points for 4 of 4 files" in note_of(loader)
    assert_equals_torchvision(loader)


def test_a_file_that_changed_is_decoded_without_its_old_entry_points(folder: Path) -> None:
    build_entry_index(folder)
    changed = folder / "class0" / "0.jpg"
    shutil.copyfile(folder / "class1" / "1.jpg", changed)
    loader = loader_of(folder)
    assert_equals_torchvision(loader)
    assert loader.stats().stale_entries == 1
    assert "1 samples whose file has changed since headrace index" in str(loader.stats())


def test_entry_points_of_another_file_with_the_same_time_are_not_believed(folder: Path) -> None:
    build_entry_index(folder)
    changed = folder / "class0" / "0.jpg"
    time = changed.stat().st_mtime_ns
    shutil.copyfile(folder / "class1" / "1.jpg", changed)
    os.utime(changed, ns=(time, time))
    assert_equals_torchvision(loader_of(folder))


def test_only_new_and_changed_files_are_read_again(folder: Path) -> None:
    build_entry_index(folder)
    shutil.copyfile(folder / "class1" / "1.jpg", folder / "class0" / "0.jpg")
    shutil.copyfile(folder / "class1" / "1.jpg", folder / "class0" / "new.jpeg")
    (folder / "class2" / "2.jpg").unlink()
    summary = build_entry_index(folder)
    assert (summary.samples, summary.reused) == (FILES, FILES - 2)
    assert_equals_torchvision(loader_of(folder))


def test_an_interrupted_run_resumes_where_it_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "PART", 2)

    def stop_after_two_parts(done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_entry_index(folder, progress=stop_after_two_parts)
    assert not (folder / ENTRIES_FILE).exists()
    summary = build_entry_index(folder)
    assert (summary.indexed, summary.reused) == (FILES, 4)
    assert sorted(os.listdir(folder)) == [ENTRIES_FILE, "class0", "class1", "class2"]


def test_files_without_use_for_entry_points_are_listed_with_none(folder: Path) -> None:
    Image.open(folder / "class0" / "0.jpg").save(folder / "class0" / "0.jpg", progressive=True)
    (folder / "class1" / "1.jpg").write_bytes(b"no picture")
    summary = build_entry_index(folder)
    assert (summary.samples, summary.indexed) == (FILES, FILES - 2)


def test_a_damaged_index_is_ignored_with_the_reason(folder: Path) -> None:
    (folder / ENTRIES_FILE).write_bytes(b"ARROW1\0\0 and nothing that follows from it")
    assert "are ignored" in note_of(loader_of(folder))
    assert_equals_torchvision(loader_of(folder))


def test_no_index_is_no_remark(folder: Path) -> None:
    source = ImageSource.from_samples(ImageFolder(str(folder)).samples)
    assert find_entry_points(folder, source) == (None, "")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="nowhere isn't a folder"):
        build_entry_index(tmp_path / "nowhere")
