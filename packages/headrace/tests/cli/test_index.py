"""`headrace index`, run as a user runs it."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import headrace
import headrace.testing
from support.command import run_command
from support.jpegs import image_folder


def noisy_jpeg(path: Path) -> None:
    """A picture of enough bytes to have entry points."""
    pixels = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def test_index_says_what_it_wrote(tmp_path: Path) -> None:
    noisy_jpeg(tmp_path / "a.jpg")
    done = run_command("index", tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "1 of 1 files (0 reused) have entry points" in done.stdout
    assert (tmp_path / ".headrace-entry-points.arrow").is_file()


def test_index_of_shards_gives_them_entry_points(tmp_path: Path) -> None:
    folder, shards = tmp_path / "folder", tmp_path / "shards"
    folder.mkdir()
    for i in range(5):
        noisy_jpeg(folder / f"{i}.jpg")
    shards.mkdir()
    for number in range(2):
        with tarfile.open(shards / f"{number}.tar", "w") as tar:
            for path in sorted(folder.iterdir())[number::2]:
                tar.add(path, path.name)
    (shards / "index.arrow.partial").mkdir()
    done = run_command("index", shards)
    assert done.exit_code == 0, done.stderr
    assert "5 of 5 samples have entry points" in done.stdout
    assert sorted(path.name for path in shards.iterdir()) == ["0.tar", "1.tar", "index.arrow"]
    dataset = headrace.PackedDataset(shards)
    assert len(dataset) == 5
    assert dataset.source.entries.indexed == 5
    assert run_command("verify", shards).exit_code == 0
    again = run_command("index", shards)
    assert again.exit_code == 0, again.stderr


def test_index_refuses_an_lmdb(tmp_path: Path) -> None:
    path = tmp_path / "data.lmdb"
    path.write_bytes(b"")
    done = run_command("index", path)
    assert done.exit_code == 2
    assert f"{path} is an LMDB, which isn't read natively. Pack it: headrace pack" in done.stderr
    with pytest.raises(headrace.PackError, match="is an LMDB"):
        headrace.PackedDataset(path)


def test_index_leaves_a_pack_alone(tmp_path: Path) -> None:
    headrace.pack(image_folder(tmp_path / "folder", 2), tmp_path / "pack")
    done = run_command("index", tmp_path / "pack")
    assert done.exit_code == 2
    assert "was made by headrace pack" in done.stderr.replace("\n", " ")


def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    done = run_command("index", tmp_path / "nowhere")
    assert done.exit_code == 2
    assert "nowhere isn't a folder" in done.stderr.replace("\n", "")
