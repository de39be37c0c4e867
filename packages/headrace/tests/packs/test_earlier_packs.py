"""Packs, indexes and interrupted work of version 0.1.0 are read, verified, finished and made the same."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Resize, ToTensor

import headrace
from headrace._native import ffi
from headrace.packs.index import build_entry_index, build_shard_index
from headrace.packs.verify import verify
from headrace.sources.entry_index import EntryIndex
from headrace.sources.folder import ENTRIES_FILE
from headrace.sources.pack_index import PackIndex
from support.pack_folders import contents

GOLDEN = Path(__file__).parents[1] / "golden" / "packs.tar.xz"
OPTIONS = {"shard_size": 6000, "shuffle": 1}


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """What version 0.1.0 has written: `source` is an image folder, the rest was made from it."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="tar")
    return tmp_path / "packs"


def assert_same_index(one: Path, other: Path) -> None:
    """But for the version, and for the layout that an Arrow file may have."""
    first, second = PackIndex(one), PackIndex(other)
    assert first.batch.equals(second.batch)
    assert first.about.shards == second.about.shards
    assert first.about.classes == second.about.classes
    assert {**first.about.made, "headrace": ""} == {**second.about.made, "headrace": ""}


@pytest.mark.parametrize("name", ["tar.pack", "lmdb.pack"])
def test_packs_are_read_and_verified(earlier: Path, name: str) -> None:
    if name == "lmdb.pack":
        pytest.importorskip("lmdb")
        pytest.importorskip("msgpack")
    transform = Compose([Resize((20, 20)), ToTensor()])
    pack, folder = headrace.PackedDataset(earlier / name, transform), ImageFolder(str(earlier / "source"))
    assert pack.classes == folder.classes
    stored = {pack.source.open(i).read(): pack.targets[i] for i in range(len(pack))}
    assert stored == {Path(path).read_bytes(): label for path, label in folder.samples}
    (batch,) = headrace.DataLoader(pack, batch_size=len(pack))
    assert torch.equal(batch[0], torch.stack([image for image, _ in pack]))  # type: ignore[attr-defined]
    assert verify(earlier / name, against=earlier / "source").problems == ()
    headrace.pack(earlier / name, earlier / "again")
    assert verify(earlier / "again", against=earlier / "source").problems == ()


def test_a_pack_is_made_byte_for_byte(earlier: Path, tmp_path: Path) -> None:
    headrace.pack(earlier / "source", tmp_path / "now", **OPTIONS)  # type: ignore[arg-type]
    now, then = contents(tmp_path / "now"), contents(earlier / "tar.pack")
    assert_same_index(tmp_path / "now" / "index.arrow", earlier / "tar.pack" / "index.arrow")
    assert {**now, "index.arrow": b""} == {**then, "index.arrow": b""}


def test_interrupted_work_is_finished(earlier: Path) -> None:
    plan = earlier / "begun.pack.partial" / "plan.json"
    version = ffi.build_info()["version"]
    plan.write_text(json.dumps({**json.loads(plan.read_text()), "headrace": version}))
    summary = headrace.pack(earlier / "source", earlier / "begun.pack", **OPTIONS)  # type: ignore[arg-type]
    assert summary.reused == 3
    assert_same_index(earlier / "begun.pack" / "index.arrow", earlier / "tar.pack" / "index.arrow")


def test_entry_points_are_used_and_made_the_same(earlier: Path) -> None:
    source = earlier / "source"
    rows = list(EntryIndex(earlier / "entry-points.arrow").rows())
    build_entry_index(source)
    assert list(EntryIndex(source / ENTRIES_FILE).rows()) == rows
    shutil.copy(earlier / "entry-points.arrow", source / ENTRIES_FILE)
    assert build_entry_index(source).reused == len(rows) == 6


def test_indexes_of_shards_are_read_and_made_the_same(earlier: Path) -> None:
    shards = earlier / "shards"
    pack = headrace.PackedDataset(shards)
    assert (len(pack), pack.targets) == (4, [0, 1, 2, 3])
    assert "2 samples without an image left out" in repr(pack)
    assert verify(shards).problems == ()
    os.rename(shards / "index.arrow", earlier / "index.arrow")
    build_shard_index(shards)
    assert_same_index(shards / "index.arrow", earlier / "index.arrow")
