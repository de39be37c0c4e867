"""Reading tar shards: as a torch dataset, natively, and damaged."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, Resize, ToTensor

import headrace
import headrace.order
import headrace.testing
from headrace._native import abi, ffi
from headrace._native.decoders import decoder_bits
from headrace.engine.lower import lower_pipeline
from headrace.errors import CacheError
from headrace.packs.index import build_shard_index
from headrace.packs.verify import verify
from headrace.records import EntryPoints, Extents
from headrace.sources.tar_index import read_samples
from support.deferred_images import needs_native
from support.images import decoded_as_png
from support.jpegs import image_folder
from support.pack_folders import add
from support.python import run_python

TRANSFORM = Compose([RandomResizedCrop(40), RandomHorizontalFlip(), ToTensor()])
COUNT = 11


@pytest.fixture
def folder(tmp_path: Path) -> ImageFolder:
    return ImageFolder(str(image_folder(tmp_path / "folder", COUNT)), TRANSFORM)


@pytest.fixture
def shards(tmp_path: Path, folder: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder's samples in two tar files, as the webdataset package would write them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "shards"
    place.mkdir()
    for number in range(2):
        with tarfile.open(place / f"{number}.tar", "w") as tar:
            for i in range(number * 6, min(COUNT, number * 6 + 6)):
                path, label = folder.samples[i]
                add(tar, f"train/{i:04}.jpg", Path(path).read_bytes())
                add(tar, f"train/{i:04}.cls", str(label).encode())
                add(tar, f"train/{i:04}.meta.json", json.dumps({"i": i}).encode())
    return place


def test_samples_are_those_of_the_folder(folder: ImageFolder, shards: Path) -> None:
    dataset = headrace.PackedDataset(shards)
    assert len(dataset) == COUNT
    assert dataset.targets == folder.targets
    plain = ImageFolder(folder.root)
    for i in range(COUNT):
        image, label = dataset[i]
        assert image.tobytes() == plain[i][0].tobytes()
        assert label == plain[i][1]
    assert dataset.key(3) == "train/0003"
    assert json.loads(dataset.fields(3)["meta.json"]) == {"i": 3}
    assert dataset.fields(-1)["jpg"] == Path(folder.samples[-1][0]).read_bytes()
    with pytest.raises(IndexError, match="11 is out of range for 11"):
        dataset[COUNT]


@pytest.mark.parametrize("workers", [0, 2])
def test_native_batches_equal_those_of_the_folder(folder: ImageFolder, shards: Path, workers: int) -> None:
    dataset = headrace.PackedDataset(shards, TRANSFORM)
    loaders = [
        headrace.DataLoader(data, batch_size=4, seed=5, num_workers=workers) for data in (dataset, folder)
    ]
    assert loaders[0].plan().native is not None
    for (images, labels), (expected, targets) in zip(*loaders, strict=True):
        assert torch.equal(images, expected)
        assert torch.equal(labels, targets)
    assert torch.equal(headrace.testing.replay(loaders[0], 7), headrace.testing.replay(loaders[1], 7))


def test_a_pack_of_mixed_formats_runs_natively(tmp_path: Path) -> None:
    needs_native("PNG")
    needs_native("WEBP")
    src = image_folder(tmp_path / "src", 4)
    for i in range(8):
        image = Image.fromarray(np.full((30, 40, 3), 20 * i, np.uint8))
        image.save(src / "class1" / f"{i}.{('png', 'webp', 'bmp')[i % 3]}")
    headrace.pack(src, tmp_path / "pack")
    dataset = headrace.PackedDataset(tmp_path / "pack", Compose([Resize((24, 24)), ToTensor()]))
    loader = headrace.DataLoader(dataset, batch_size=5)
    assert loader.plan().native is not None
    images = torch.cat([images for images, _ in loader])
    assert torch.equal(images, torch.stack([image for image, _ in dataset]))  # type: ignore[attr-defined]
    names = [dataset.index.text("extension", i) for i in range(len(dataset))]
    decoded = loader.stats().decoded_by
    assert (decoded_as_png(loader), decoded["libwebp"], decoded["pillow"]) == (3, 3, 2)
    assert names.count("jpg") == 4
    note = "of 12 files 4 JPEG, 3 PNG, 3 WEBP by extension; the others are decoded by Pillow"
    assert note in " ".join(loader.explain().split())


def test_shards_can_be_walked_in_a_random_order(shards: Path) -> None:
    dataset = headrace.PackedDataset(shards)
    assert dataset.shard_boundaries.tolist() == [0, 6, COUNT]
    order = headrace.order.LocalShuffled(dataset.shard_boundaries, window=1)
    assert sorted(order) == list(range(COUNT))
    assert list(order)[:5] in ([0, 1, 2, 3, 4], [6, 7, 8, 9, 10])


def test_subset_and_pickled_dataset(shards: Path) -> None:
    dataset = headrace.PackedDataset(shards, TRANSFORM)
    again = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(dataset)) < 2000
    order = [9, 2, -1]
    images, labels = next(iter(headrace.DataLoader(Subset(again, order), batch_size=3, seed=1)))
    assert labels.tolist() == [dataset.targets[i] for i in order]
    loader = headrace.DataLoader(Subset(dataset, order), batch_size=3, seed=1)
    assert torch.equal(images, torch.stack([headrace.testing.replay(loader, i, 0) for i in range(3)]))


def test_the_index_is_kept_until_a_shard_changes(shards: Path, tmp_path: Path) -> None:
    headrace.PackedDataset(shards)
    (kept,) = (tmp_path / "cache").rglob("*.arrow")
    first = kept.stat().st_mtime_ns
    headrace.PackedDataset(shards)
    assert kept.stat().st_mtime_ns == first
    with tarfile.open(shards / "1.tar", "a") as tar:
        add(tar, "new.cls", b"3")
        add(tar, "new.jpg", headrace.PackedDataset(shards).fields(0)["jpg"])
    dataset = headrace.PackedDataset(shards)
    assert (len(dataset), dataset.targets[-1]) == (COUNT + 1, 3)


def test_damage_is_named(shards: Path, tmp_path: Path) -> None:
    tar = shards / "1.tar"
    whole = tar.read_bytes()
    dataset = headrace.PackedDataset(shards, TRANSFORM)
    tar.write_bytes(whole[: len(whole) // 2])
    loader = headrace.DataLoader(dataset, batch_size=COUNT)
    with pytest.raises(headrace.SampleError, match=r"1\.tar ends before byte \d+: it was cut short"):
        next(iter(loader))
    with pytest.raises(headrace.PackError, match=r"1\.tar can't be read as an uncompressed tar file"):
        headrace.PackedDataset(shards)
    os.remove(tar)
    with pytest.raises(headrace.SampleError, match=r"No such file.*1\.tar"):
        next(iter(loader))
    with pytest.raises(headrace.PackError, match="doesn't exist"):
        headrace.PackedDataset(tar)
    with pytest.raises(headrace.PackError, match=r"holds neither index\.arrow nor \.tar files"):
        headrace.PackedDataset(tmp_path)
    (tmp_path / "index.arrow").write_bytes(b"ARROW1 of another kind")
    with pytest.raises(headrace.PackError, match="can't be read as a pack's index"):
        headrace.PackedDataset(tmp_path)


def test_a_cache_that_cannot_be_written_to_is_named_with_the_way_out(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(CacheError, match=r"file/headrace/packs, .*: Not a directory\. .* XDG_CACHE_HOME"):
        headrace.PackedDataset(shards)


def test_an_index_of_another_pack_is_refused(shards: Path, tmp_path: Path) -> None:
    headrace.PackedDataset(shards)
    (kept,) = (tmp_path / "cache").rglob("*.arrow")
    with tarfile.open(shards / "0.tar", "a") as tar:
        add(tar, "one.more", b"x" * 20000)
    with pytest.raises(headrace.PackError, match=r"0\.tar has changed since .*\.arrow was made"):
        headrace.PackedDataset(kept)
    os.remove(shards / "0.tar")
    with pytest.raises(headrace.PackError, match=r"0\.tar, which .* names, can't be read: No such file"):
        headrace.PackedDataset(kept)


def test_samples_without_an_image_are_counted(shards: Path, tmp_path: Path) -> None:
    with tarfile.open(shards / "2.tar", "w") as tar:
        add(tar, "text.txt", b"no image")
    assert "1 samples without an image left out" in repr(headrace.PackedDataset(shards))
    build_shard_index(shards)
    assert "1 samples without an image left out" in repr(headrace.PackedDataset(shards))
    assert headrace.pack(shards, tmp_path / "pack").notes == ("1 samples have no image: left out.",)


def test_members_that_belong_to_no_sample(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        add(tar, "README", b"no extension")
        add(tar, "__note__", b"")
        long = "long/" * 60 + "name"
        add(tar, f"{long}.png", b"1")
        add(tar, f"{long}.cls", b"2")
        add(tar, "other.jpg", b"333")
    first, second = read_samples(path)
    assert (first.key, [field.extension for field in first.fields]) == (long, ["png", "cls"])
    assert (second.key, second.fields[0].size, second.size) == ("other", 3, 1024)
    data = path.read_bytes()
    assert data[first.fields[0].offset : first.fields[0].offset + 1] == b"1"
    assert first.offset + first.size == second.offset


def test_opening_an_index_reads_next_to_nothing_of_it(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
import numpy as np, psutil, pyarrow as pa
from headrace.sources.pack_index import COLUMNS, PackAbout, Shard, write_index
from headrace import PackedDataset

n = 400_000
shard = Path(sys.argv[1]) / "0.tar"
shard.write_bytes(b"")
empty = {pa.large_binary(): [b""] * n, pa.large_string(): [""] * n}
columns = [empty[t] if t in empty else np.zeros(n, str(t)) for t in COLUMNS.types]
about = PackAbout("tar", (Shard("0.tar", 0),))
write_index(shard.with_name("index.arrow"), zip(*columns, strict=True), about)
del columns, empty
before = psutil.Process().memory_info()
assert len(PackedDataset(sys.argv[1])) == n
after = psutil.Process().memory_info()
print(after.rss - before.rss, shard.with_name("index.arrow").stat().st_size)
"""
    done = run_python(script, tmp_path, check=True)
    grown, size = map(int, done.stdout.split())
    assert size > 24e6
    assert grown < 4e6


def test_a_kept_index_that_is_damaged_is_made_again(shards: Path, tmp_path: Path) -> None:
    headrace.PackedDataset(shards)
    (kept,) = (tmp_path / "cache").rglob("*.arrow")
    kept.write_bytes(b"")
    assert len(headrace.PackedDataset(shards)) == COUNT
    with pytest.raises(headrace.PackError, match=r"list of \.tar files is empty"):
        headrace.PackedDataset([])


def test_an_index_of_shards_that_changed_is_refused(shards: Path) -> None:
    build_shard_index(shards)
    tar = shards / "0.tar"
    tar.write_bytes(tar.read_bytes())
    with pytest.raises(headrace.PackError, match=r"0\.tar has changed since .*headrace index"):
        headrace.PackedDataset(shards)
    assert any("has changed since headrace index" in str(problem) for problem in verify(shards).problems)
    build_shard_index(shards)
    assert len(headrace.PackedDataset(shards)) == COUNT


def test_an_interrupted_index_takes_no_other_shards_rows(shards: Path) -> None:
    def stop_after_one(done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_shard_index(shards, progress=stop_after_one)
    with tarfile.open(shards / "0.tar") as old, tarfile.open(shards / "00.tar", "w") as new:
        for member in old:
            add(new, member.name.replace("train", "other"), old.extractfile(member).read())  # type: ignore[union-attr]
    assert (shards / "00.tar").stat().st_size == (shards / "0.tar").stat().st_size
    build_shard_index(shards)
    dataset = headrace.PackedDataset(shards)
    assert [dataset.key(i)[:5] for i in (0, 6)] == ["train", "other"]


def test_names_that_are_not_text(tmp_path: Path, shards: Path) -> None:
    with tarfile.open(tmp_path / "odd.tar", "w", format=tarfile.USTAR_FORMAT, encoding="latin-1") as tar:
        add(tar, "caf\xe9.jpg", headrace.PackedDataset(shards).fields(0)["jpg"])
    assert headrace.PackedDataset(tmp_path / "odd.tar").key(0) == "caf\\udce9"


def test_entry_points_outside_the_index_are_ignored(folder: ImageFolder) -> None:
    plan = headrace.DataLoader(folder).plan().native
    assert plan is not None
    n = len(plan.source)
    begins = np.array([0, 7, 1 << 60, 5] * n, np.uint64)[:n]
    ends = np.array([1 << 50, 3, 2, (1 << 64) - 1] * n, np.uint64)[:n]
    entries = EntryPoints(np.zeros(10, np.uint8), begins, ends, None)
    source = ffi.Source.of_extents(
        plan.source.paths,  # type: ignore[attr-defined]
        plan.source.offsets,  # type: ignore[attr-defined]
        Extents(
            np.arange(n, dtype=np.uint32),
            np.zeros(n, np.uint64),
            np.array([Path(path).stat().st_size for path, _ in folder.samples], np.uint64),
        ),
        entries,
    )
    images = torch.empty(n, 3, 40, 40)
    pool = ffi.Pool(1, 0)
    pipeline = lower_pipeline(plan, decoder_bits())
    batch = pool.submit(pipeline, source, np.arange(n), seed=0, epoch=0, output=images.data_ptr())
    while not batch.wait(100):
        pass
    assert (batch.statuses["code"] == abi.OK).all()
