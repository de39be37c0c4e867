"""Sources other than image folders: WebDataset tars, LMDBs, packs, ILSVRC2012's downloads, torch datasets."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Dataset, TensorDataset
from torchvision.datasets import ImageFolder, imagenet

import headrace
from headrace.packs.inputs import DEVKIT
from headrace.packs.verify import verify
from headrace.sources.pack_index import PackIndex
from support.jpegs import image_folder
from support.pack_folders import add, contents, odd_folder

lmdb = pytest.importorskip("lmdb")
msgpack = pytest.importorskip("msgpack")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def samples(dest: Path) -> dict[str, tuple[bytes, int, str]]:
    pack = headrace.PackedDataset(dest)
    return {
        pack.key(i): (pack.source.open(i).read(), pack.targets[i], pack.index.text("extension", i))
        for i in range(len(pack))
    }


def test_webdataset_shards_keep_all_fields(tmp_path: Path) -> None:
    jpegs = [path.read_bytes() for path in sorted(image_folder(tmp_path / "src", 6).rglob("*.jpg"))]
    (tmp_path / "shards").mkdir()
    fields = {}
    for number in range(2):
        with tarfile.open(tmp_path / "shards" / f"{number}.tar", "w") as tar:
            for i in range(number * 3, number * 3 + 3):
                parts = {"seg.png": b"mask", "JPG": jpegs[i], "cls": b"%d\n" % i, "json": b'{"i": %d}' % i}
                if i == 4:
                    del parts["cls"]
                fields[f"a.dir/{i}"] = parts
                for extension, data in parts.items():
                    add(tar, f"a.dir/{i}.{extension}", data)
    for src in (tmp_path / "shards", tmp_path / "shards" / "0.tar"):
        dest = tmp_path / f"{src.stem}.pack"
        assert headrace.pack(src, dest, workers=2).samples == (6 if src.is_dir() else 3)
        pack = headrace.PackedDataset(dest)
        for i in range(len(pack)):
            assert pack.key(i) == f"a.dir/{i}"
            assert pack.fields(i) == fields[pack.key(i)]
            assert pack.targets[i] == (-1 if i == 4 else i)
        assert verify(dest, against=src).problems == ()


def test_keys_that_repeat_in_other_shards_get_their_shards_name(tmp_path: Path) -> None:
    jpeg = next(image_folder(tmp_path / "src", 1).rglob("*.jpg")).read_bytes()
    (tmp_path / "shards").mkdir()
    for name in ("x", "y"):
        with tarfile.open(tmp_path / "shards" / f"{name}.tar", "w") as tar:
            add(tar, "0.jpg", jpeg)
    headrace.pack(tmp_path / "shards", tmp_path / "dest")
    assert list(samples(tmp_path / "dest")) == ["x/0", "y/0"]


def test_a_damaged_header_in_a_tar_is_not_its_end(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for i in range(3):
            add(tar, f"{i}.jpg", b"x")
    data = bytearray((tmp_path / "x.tar").read_bytes())
    data[1024] ^= 1
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(headrace.PackError, match=r"x\.tar .* damaged header at byte 1,024"):
        headrace.pack(tmp_path / "x.tar", tmp_path / "dest")


@pytest.mark.parametrize("between", ["tar", "lmdb"])
def test_from_folder_to_pack_to_pack_nothing_changes(tmp_path: Path, between: Any) -> None:
    src = odd_folder(tmp_path / "src")
    (src / "class0" / "00000.json").write_text("{}")
    headrace.pack(src, tmp_path / "direct")
    headrace.pack(src, tmp_path / "between", format=between, shard_size=30_000, shuffle=1)
    headrace.pack(tmp_path / "between", tmp_path / "dest")
    assert samples(tmp_path / "dest") == samples(tmp_path / "direct")
    assert headrace.PackedDataset(tmp_path / "dest").classes == ImageFolder(str(src)).classes
    assert verify(tmp_path / "dest", against=src).problems == ()
    assert verify(tmp_path / "dest", against=tmp_path / "between").problems == ()


def test_training_scripts_read_the_lmdb(tmp_path: Path) -> None:
    folder = ImageFolder(str(image_folder(tmp_path / "src", 7)))
    headrace.pack(folder.root, tmp_path / "dest", format="lmdb")
    assert sorted(contents(tmp_path / "dest")) == ["data.mdb", "index.arrow"]
    env = lmdb.open(str(tmp_path / "dest"), readonly=True, lock=False)
    with env.begin() as transaction:
        count = msgpack.unpackb(transaction.get(b"__len__"))
        keys = msgpack.unpackb(transaction.get(b"__keys__"))
        values = [msgpack.unpackb(transaction.get(key)) for key in keys]
    env.close()
    assert (count, keys) == (7, [b"%d" % i for i in range(7)])
    assert values == [[Path(path).read_bytes(), label] for path, label in folder.samples]
    with pytest.raises(headrace.PackError, match=r"dest is an LMDB.*Pack it: headrace pack .*/dest DEST"):
        headrace.PackedDataset(tmp_path / "dest")


def test_small_and_large_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "src" / "a").mkdir(parents=True)
    for i, size in enumerate((0, 1, 200, 300, 1000, 2020, 4000, 65_535, 65_536, 300_000)):
        (tmp_path / "src" / "a" / f"{i}.jpg").write_bytes(rng.bytes(size))
    headrace.pack(tmp_path / "src", tmp_path / "dest", format="lmdb")
    assert verify(tmp_path / "dest", against=tmp_path / "src").problems == ()


def write_lmdb(path: Path, values: dict[bytes, Any]) -> None:
    env = lmdb.open(str(path), map_size=1 << 24)
    with env.begin(write=True) as transaction:
        for key, value in values.items():
            transaction.put(key, msgpack.packb(value))
    env.close()


@pytest.mark.parametrize("form", ["numbers", "keys", "bare"])
def test_lmdbs_as_scripts_write_them(tmp_path: Path, form: str) -> None:
    images = [path.read_bytes() for path in sorted(image_folder(tmp_path / "src", 12).rglob("*.jpg"))]
    names = [b"n%d.x" % i if form == "keys" else b"%d" % i for i in range(12)]
    values: dict[bytes, Any] = dict(zip(names, [(image, i) for i, image in enumerate(images)], strict=True))
    if form != "bare":
        values[b"__len__"] = 12
    if form == "keys":
        values[b"__keys__"] = names
    write_lmdb(tmp_path / "lmdb", values)
    headrace.pack(tmp_path / "lmdb", tmp_path / "dest")
    expected = {
        name.decode(): (image, i, "jpg") for i, (name, image) in enumerate(zip(names, images, strict=True))
    }
    found = samples(tmp_path / "dest")
    assert found == expected
    assert form == "bare" or list(found) == list(expected)
    assert verify(tmp_path / "dest", against=tmp_path / "lmdb").problems == ()


def test_lmdbs_of_another_kind_are_refused(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "text", {b"a": "text"})
    with pytest.raises(headrace.PackError, match=r"text/data\.mdb: the value of a isn't msgpack"):
        headrace.pack(tmp_path / "text", tmp_path / "dest")
    write_lmdb(tmp_path / "label", {b"a": (b"image", "cat")})
    with pytest.raises(headrace.PackError, match="the label of a is 'cat', not a whole number"):
        headrace.pack(tmp_path / "label", tmp_path / "dest2")
    write_lmdb(tmp_path / "lost", {b"__keys__": [b"a"]})
    with pytest.raises(headrace.PackError, match="has no b'a', which its __keys__"):
        headrace.pack(tmp_path / "lost", tmp_path / "dest3")
    (tmp_path / "no.mdb").write_bytes(b"nothing of the kind")
    with pytest.raises(headrace.PackError, match=r"no\.mdb can't be opened as an LMDB"):
        headrace.pack(tmp_path / "no.mdb", tmp_path / "dest4")


WNIDS = ("n03", "n01", "n02")  # by ILSVRC2012_ID: not in the order of their names


@pytest.fixture
def ilsvrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An extracted tree of three classes in `train` and `val`, and the download that it comes from."""
    io_ = pytest.importorskip("scipy.io")
    jpegs = [path.read_bytes() for path in sorted(image_folder(tmp_path / "any", 12).rglob("*.jpg"))]
    for i, data in enumerate(jpegs[:6]):
        file = tmp_path / "train" / WNIDS[i % 3] / f"{WNIDS[i % 3]}_{9 - i}.JPEG"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    ids = [2, 3, 1, 1, 2, 3]
    download = tmp_path / "download"
    download.mkdir()
    with tarfile.open(download / "ILSVRC2012_img_val.tar", "w") as tar:
        for i in (3, 0, 5, 1, 2, 4):
            name = f"ILSVRC2012_val_{i + 1:08}.JPEG"
            add(tar, name, jpegs[6 + i])
            file = tmp_path / "val" / WNIDS[ids[i] - 1] / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(jpegs[6 + i])
    with tarfile.open(download / "ILSVRC2012_img_train.tar", "w") as tar:
        for folder in sorted((tmp_path / "train").iterdir()):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as small:
                for file in sorted(folder.iterdir(), reverse=True):
                    add(small, file.name, file.read_bytes())
            add(tar, f"{folder.name}.tar", inner.getvalue())
    fields = ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children")
    rows: list[Any] = [(i + 1, wnid, "a word, ünïcödé", "", 0, []) for i, wnid in enumerate(WNIDS)]
    rows.append((4, "n00", "an ancestor", "", 3, [1, 2, 3]))
    synsets = np.array([tuple(row) for row in rows], dtype=[(name, object) for name in fields])
    meta, truth = io.BytesIO(), "".join(f"{i}\n" for i in ids).encode()
    io_.savemat(meta, {"other": [1.5, 2], "synsets": synsets.reshape(-1, 1)}, do_compression=True)
    with tarfile.open(download / "ILSVRC2012_devkit_t12.tar.gz", "w:gz") as tar:
        add(tar, "ILSVRC2012_devkit_t12/data/meta.mat", meta.getvalue())
        add(tar, "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", truth)
    md5 = hashlib.md5((download / DEVKIT).read_bytes()).hexdigest()
    monkeypatch.setitem(imagenet.ARCHIVE_META, "devkit", (DEVKIT, md5))
    return tmp_path


@pytest.mark.filterwarnings("ignore:Python 3.14 will, by default, filter extracted")  # from torchvision
@pytest.mark.parametrize("split", ["train", "val"])
def test_ilsvrc_downloads_equal_the_extracted_folder(ilsvrc: Path, split: str) -> None:
    tar = ilsvrc / "download" / f"ILSVRC2012_img_{split}.tar"
    headrace.pack(tar, ilsvrc / "from_tar")
    headrace.pack(ilsvrc / split, ilsvrc / "from_tree")
    shards = [contents(ilsvrc / name) for name in ("from_tar", "from_tree")]
    assert shards[0]["shard-000000.tar"] == shards[1]["shard-000000.tar"]
    packs = [headrace.PackedDataset(ilsvrc / name) for name in ("from_tar", "from_tree")]
    assert packs[0].classes == packs[1].classes == ["n01", "n02", "n03"]
    assert packs[0].index.batch.equals(packs[1].index.batch)
    assert verify(ilsvrc / "from_tar", against=ilsvrc / split).problems == ()


@pytest.mark.filterwarnings("ignore:Python 3.14 will, by default, filter extracted")  # from torchvision
def test_ilsvrc_downloads_that_lack_something(ilsvrc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    download = ilsvrc / "download"
    with pytest.raises(headrace.PackError, match=r"holds two data sets: pack .*train\.tar and .*val\.tar"):
        headrace.pack(download, ilsvrc / "dest")
    (download / "ILSVRC2012_img_train.tar").unlink()
    assert headrace.pack(download, ilsvrc / "dest").samples == 6
    (download / "ILSVRC2012_devkit_t12.tar.gz").rename(ilsvrc / "kept")
    with pytest.raises(headrace.PackError, match=r"devkit_t12\.tar\.gz isn't there"):
        headrace.pack(download, ilsvrc / "dest2")
    (download / DEVKIT).symlink_to(ilsvrc / "kept")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "scipy.io", None)
        with pytest.raises(headrace.ConfigError, match="needs scipy to be read: pip install scipy"):
            headrace.pack(download, ilsvrc / "dest2")
    (download / DEVKIT).unlink()
    (download / DEVKIT).write_bytes(b"no archive")
    with pytest.raises(headrace.PackError, match=r"devkit_t12\.tar\.gz can't be read"):
        headrace.pack(download, ilsvrc / "dest2")


def test_datasets_that_tell_their_files_are_packed_from_them(tmp_path: Path) -> None:
    folder = ImageFolder(str(odd_folder(tmp_path / "src")), transform=lambda _: 1 / 0)
    headrace.pack(folder, tmp_path / "dest")
    headrace.pack(tmp_path / "src", tmp_path / "expected")
    assert samples(tmp_path / "dest") == samples(tmp_path / "expected")
    assert headrace.PackedDataset(tmp_path / "dest").classes == folder.classes
    paths, labels = zip(*folder.samples[:5], strict=True)
    headrace.pack(headrace.ImageDataset(paths, labels), tmp_path / "few")
    pack = headrace.PackedDataset(tmp_path / "few")
    assert pack.targets == list(labels)
    assert pack.source.open(4).read() == Path(paths[4]).read_bytes()


class Pictures(Dataset[Any]):
    classes = ("gray", "color")

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        rng = np.random.default_rng(index)
        shape = (20, 30, 3) if index % 2 else (20, 30)
        return Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)), index % 2


def test_images_of_datasets_are_encoded_as_specified(tmp_path: Path) -> None:
    with pytest.raises(headrace.ConfigError, match=r"Pictures has no `samples`.*reencode='png'"):
        headrace.pack(Pictures(), tmp_path / "dest")
    headrace.pack(Pictures(), tmp_path / "dest", reencode="png", workers=2)
    pack = headrace.PackedDataset(tmp_path / "dest")
    assert pack.classes == ["gray", "color"]
    assert pack.key(3) == "00000003"
    for i in range(5):
        image, label = Pictures()[i]
        with Image.open(pack.source.open(i)) as stored:
            assert (stored.mode, stored.tobytes(), stored.format) == (image.mode, image.tobytes(), "PNG")
        assert pack.targets[i] == label
    headrace.pack(Pictures(), tmp_path / "jpeg", reencode="jpeg", quality=50)
    assert PackIndex(tmp_path / "jpeg" / "index.arrow").text("extension", 0) == "jpg"


def test_datasets_of_something_else_are_refused(tmp_path: Path) -> None:
    import torch

    with pytest.raises(headrace.PackError, match="Sample 0 of TensorDataset is Tensor, not a PIL image"):
        headrace.pack(TensorDataset(torch.zeros(2, 3), torch.zeros(2)), tmp_path / "dest", reencode="png")
    with pytest.raises(headrace.PackError, match="Sample 0 of TensorDataset can't be loaded"):
        headrace.pack(TensorDataset(torch.zeros(2, 3)), tmp_path / "dest", reencode="png")


def test_files_of_no_known_kind(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK")
    with pytest.raises(headrace.PackError, match=r"a\.zip is neither a folder, a \.tar file nor an LMDB"):
        headrace.pack(tmp_path / "a.zip", tmp_path / "dest")
