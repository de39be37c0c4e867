"""Packing an image folder: nothing lost, nothing changed, the same bytes every time."""

from __future__ import annotations

import gc
import os
import tarfile
import zlib
from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder

import headrace
from headrace._native import ffi
from headrace.packs.tar import member_stem
from headrace.sources.pack_index import PackIndex
from support.extras import integration
from support.jpegs import image_folder
from support.pack_folders import contents, odd_folder


def true_name(key: str, extension: str) -> str:
    """The file's name again: files that differ in the extension only have it in their key."""
    return key if key.endswith("." + extension) or not extension else f"{key}.{extension}"


def test_every_odd_file_keeps_its_bytes_label_and_name(tmp_path: Path) -> None:
    root = odd_folder(tmp_path / "src")
    folder = ImageFolder(str(root))
    summary = headrace.pack(root, tmp_path / "dest", shard_size=60_000)
    pack = headrace.PackedDataset(tmp_path / "dest")
    assert summary.samples == len(pack) == len(folder)
    assert summary.shards > 3
    assert pack.classes == folder.classes
    assert pack.targets == folder.targets
    assert pack.class_to_idx == folder.class_to_idx
    names = set()
    for i, (path, label) in enumerate(folder.samples):
        data = Path(path).read_bytes()
        assert pack.source.open(i).read() == data
        fields = pack.fields(i)
        assert fields.pop("cls") == b"%d" % label
        assert list(fields.values()) == [data]
        names.add(true_name(pack.key(i), pack.index.text("extension", i)))
    assert names == {os.path.relpath(path, root) for path, _ in folder.samples}


def test_the_index_says_what_each_image_is(tmp_path: Path) -> None:
    folder = ImageFolder(str(image_folder(tmp_path / "src", 12, side=400)))
    headrace.pack(folder.root, tmp_path / "dest")
    index = PackIndex(tmp_path / "dest" / "index.arrow")
    entries, begins, ends = index.entries()
    for i, (image, _) in enumerate(folder):
        data = Path(folder.samples[i][0]).read_bytes()
        assert index.numbers("checksum")[i] == zlib.crc32(data)
        assert (index.numbers("width")[i], index.numbers("height")[i]) == image.size
        assert entries[begins[i] : ends[i]].tobytes() == ffi.index_images([data])[0].entries
    assert ends[0] > begins[0]
    assert index.about.made["source"] == "ImageFolder"


def test_shards_are_plain_tar_files_without_owner_or_time(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "src", 5)
    headrace.pack(folder, tmp_path / "dest")
    with tarfile.open(tmp_path / "dest" / "shard-000000.tar") as tar:
        members = tar.getmembers()
    assert [m.name for m in members[:4]] == [
        "class0/00000.jpg",
        "class0/00000.cls",
        "class0/00003.jpg",
        "class0/00003.cls",
    ]
    assert {(m.mtime, m.uid, m.gid, m.mode, m.uname, m.gname) for m in members} == {(0, 0, 0, 0o644, "", "")}


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the package leaves its files open
def test_the_webdataset_package_reads_the_shards(tmp_path: Path) -> None:
    webdataset = integration("webdataset")
    folder = ImageFolder(str(odd_folder(tmp_path / "src")))
    headrace.pack(folder.root, tmp_path / "dest", shard_size=60_000)
    shards = sorted(str(path) for path in (tmp_path / "dest").glob("*.tar"))
    samples = list(webdataset.WebDataset(shards, shardshuffle=False, empty_check=False))
    gc.collect()
    assert len(samples) == len(folder)
    pack = headrace.PackedDataset(tmp_path / "dest")
    for i, sample in enumerate(samples):
        assert sample["__key__"] == member_stem(pack.key(i))
        image = next(sample[name] for name in ("jpg", "jpeg", "png") if name in sample)
        assert image == Path(folder.samples[i][0]).read_bytes()
        assert int(sample["cls"]) == folder.targets[i]


def test_the_same_bytes_for_any_number_of_workers_and_any_time(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "src", 70)
    for name, workers in (("one", 1), ("two", 2), ("five", 5)):
        headrace.pack(folder, tmp_path / name, workers=workers, shard_size=50_000, shuffle=3)
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "five")
    assert len(contents(tmp_path / "one")) > 4


def test_shuffling_depends_on_the_seed_and_the_keys_only(tmp_path: Path) -> None:
    folder = ImageFolder(str(image_folder(tmp_path / "src", 30)))
    orders = []
    for seed in (None, 1, 2):
        headrace.pack(folder.root, tmp_path / f"{seed}", shuffle=seed)
        pack = headrace.PackedDataset(tmp_path / f"{seed}")
        orders.append([pack.key(i) for i in range(len(pack))])
        labels = {os.path.relpath(path, folder.root)[:-4]: label for path, label in folder.samples}
        assert {pack.key(i): pack.targets[i] for i in range(len(pack))} == labels
    assert orders[0] == sorted(orders[0])
    assert len({tuple(order) for order in orders}) == 3


def test_files_next_to_an_image_become_fields_and_others_are_reported(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "src", 2, classes=1)
    for name in ("00000.json", "00000.txt", "alone.json", "00000.cls", "README"):
        (folder / "class0" / name).write_text(name)
    summary = headrace.pack(folder, tmp_path / "dest")
    fields = headrace.PackedDataset(tmp_path / "dest").fields(0)
    assert list(fields) == ["jpg", "cls", "json", "txt"]
    assert fields["json"] == b"00000.json"
    assert fields["cls"] == b"0"
    (note,) = summary.notes
    assert note.startswith("3 files that ImageFolder ignores were left out: ")
    assert "json (1)" in note
    assert "cls (1)" in note
    assert "no extension (1)" in note


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "zip"}, r"format \('zip'\) must be 'tar' or 'lmdb'"),
        ({"workers": 0}, r"workers \(0\) must be at least 1"),
        ({"shard_size": 0}, r"shard_size \(0\) must be a number of bytes"),
        ({"shuffle": "yes"}, r"shuffle \('yes'\) must be an int"),
        ({"reencode": "gif"}, r"reencode \('gif'\) must be 'png' or 'jpeg'"),
        ({"strip": True}, "it needs optimize=True"),
        ({"quality": 50}, "it needs max_side or reencode='jpeg'"),
        ({"quality": 0, "max_side": 9}, r"quality \(0\) must be 1 to 100"),
        ({"max_side": 0}, r"max_side \(0\) must be at least 1"),
    ],
)
def test_options_that_cannot_be_obeyed(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(headrace.ConfigError, match=message):
        headrace.pack(tmp_path, tmp_path / "dest", **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_paths_that_are_no_source_are_refused(tmp_path: Path) -> None:
    with pytest.raises(headrace.PackError, match="nowhere doesn't exist"):
        headrace.pack(tmp_path / "nowhere", tmp_path / "dest")
    with pytest.raises(headrace.PackError, match="has no class folders"):
        headrace.pack(tmp_path, tmp_path / "dest")
    (tmp_path / "src" / "class").mkdir(parents=True)
    with pytest.raises(headrace.PackError, match="holds no images"):
        headrace.pack(tmp_path / "src", tmp_path / "dest")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "src", 5)
    (folder / "class0" / "lost.jpg").symlink_to("nowhere")
    with pytest.raises(headrace.PackError, match=r"lost\.jpg can't be read: No such file"):
        headrace.pack(folder, tmp_path / "dest")


def test_keys_that_are_equal_are_refused(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "src", 3)
    for name in ("a.jpg", "a.png", "a.jpg.png"):
        (folder / "class0" / name).write_bytes(b"x")
    with pytest.raises(headrace.PackError, match=r"have the key 'class0/a\.jpg'"):
        headrace.pack(folder, tmp_path / "dest")


def test_names_that_are_not_text_are_spelled_out(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "src", 1)
    (folder / "class0" / "00000.jpg").rename(os.fsdecode(os.fsencode(folder) + b"/class0/\xff.jpg"))
    headrace.pack(folder, tmp_path / "dest")
    assert headrace.PackedDataset(tmp_path / "dest").key(0) == "class0/\\xff"
