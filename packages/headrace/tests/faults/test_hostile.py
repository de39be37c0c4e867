"""Data made to do harm: refused in words, at once, with no byte written elsewhere and no pickle read."""

from __future__ import annotations

import os
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torchvision import transforms

import headrace
from headrace.packs.index import build_shard_index
from headrace.packs.lmdb import parse_value
from headrace.packs.stored import StoredPack
from headrace.packs.verify import verify
from headrace.recipes import loop
from headrace.sources.pack_index import COLUMNS, FILE_NAME, PackAbout, Shard
from headrace.sources.tar_index import read_samples
from support.jpegs import image_folder, jpeg
from support.pack_folders import add, change_index

STEPS = transforms.Compose([transforms.Resize((16, 16)), transforms.PILToTensor()])


@pytest.fixture
def picture() -> bytes:
    return jpeg(np.random.default_rng(0), "4:2:0", 40, 30)


def one_sample(path: Path) -> str:
    """The error of a loader over one file."""
    with pytest.raises(headrace.SampleError) as caught:
        list(headrace.DataLoader(headrace.ImageDataset([path], transform=STEPS)))
    assert str(path) in str(caught.value)
    return caught.value.cause


def of_size(picture: bytes, width: int, height: int) -> bytes:
    """The image, whose header promises another size."""
    at = picture.index(b"\xff\xc0")
    return picture[: at + 5] + struct.pack(">HH", height, width) + picture[at + 9 :]


def test_a_jpeg_that_promises_gigabytes(picture: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(of_size(picture, 65500, 65500))
    assert "DecompressionBombError" in one_sample(tmp_path / "x.jpg")


def test_a_png_that_is_a_decompression_bomb(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes(1_000_000)))
    (tmp_path / "x.jpg").write_bytes(b"\x89PNG\r\n\x1a\n" + head + data)
    assert "DecompressionBombError" in one_sample(tmp_path / "x.jpg")


@pytest.mark.timeout(60)
def test_a_pipe_is_not_waited_for(picture: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "x.jpg")
    assert "pipe, socket or device" in one_sample(tmp_path / "a" / "x.jpg")
    with pytest.raises(headrace.PackError, match=r"x\.jpg is a pipe, socket, device or folder"):
        headrace.pack(tmp_path, tmp_path / "dest")
    os.mkfifo(tmp_path / "x.tar")
    with pytest.raises(OSError, match="pipe, socket or device"):
        list(read_samples(tmp_path / "x.tar"))


# --- tar files ---


LEAVING = ("../../escaped", "/absolute/escaped", "a/../../escaped")


@pytest.mark.parametrize("key", LEAVING)
def test_keys_that_leave_the_folder_are_not_packed(key: str, picture: bytes, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        add(tar, f"{key}.jpg", picture)
        add(tar, f"{key}.cls", b"3")
    # Nothing is extracted, so they may be read, and are keys like others.
    dataset = headrace.PackedDataset(tmp_path / "x.tar", STEPS)
    assert dataset.key(0).endswith("escaped")
    assert len(list(headrace.DataLoader(dataset))) == 1
    with pytest.raises(headrace.PackError, match="outside of the folder"):
        headrace.pack(tmp_path / "x.tar", tmp_path / "in" / "dest")
    assert not list(tmp_path.rglob("escaped*"))


def test_links_and_devices_in_tars_are_no_samples(picture: bytes, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        add(tar, "link.jpg", type=tarfile.SYMTYPE, linkname="/etc/passwd")
        add(tar, "hard.jpg", type=tarfile.LNKTYPE, linkname="../../etc/passwd")
        add(tar, "device.jpg", type=tarfile.CHRTYPE, devmajor=1, devminor=5)
        add(tar, "pipe.jpg", type=tarfile.FIFOTYPE)
        add(tar, "good.jpg", picture)
    assert [sample.key for sample in read_samples(tmp_path / "x.tar")] == ["good"]
    packed = Path(headrace.pack(tmp_path / "x.tar", tmp_path / "dest").path)
    with tarfile.open(packed / "shard-000000.tar") as tar:
        assert [(member.name, member.isreg()) for member in tar] == [("good.jpg", True)]


def header(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A member that says it has so many bytes, as GNU tar writes what octal digits can't."""
    block = bytearray(tarfile.TarInfo("x.jpg").tobuf(tarfile.GNU_FORMAT)[:512])
    block[124:136] = (
        b"\x80" + size.to_bytes(11, "big") if size >= 0 else b"\xff" + (size % 256**11).to_bytes(11, "big")
    )
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.DIRTYPE]
)
@pytest.mark.parametrize("size", [-1, -512, -1024, -(1 << 62), 1 << 40, (1 << 63) - 1, 1 << 80])
def test_absurd_lengths_in_tars(size: int, kind: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(header(0) + header(size, kind) + bytes(2048))
    try:
        samples = list(read_samples(path))
    except headrace.PackError as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        assert kind != tarfile.REGTYPE
        assert [sample.key for sample in samples] == ["x"]


def test_a_label_of_gigabytes_is_not_read(tmp_path: Path, picture: bytes) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        add(tar, "x.jpg", picture)
        add(tar, "x.cls", b"1" * 5000)
    with pytest.raises(headrace.PackError, match=r"the label of x\.cls is b'1+', not a number") as caught:
        headrace.PackedDataset(path)
    assert len(str(caught.value)) < 300


# --- indexes ---


def pack_of(folder: Path, **columns: Any) -> Path:
    """A pack of one image, of whose index some columns say something else."""
    made = Path(headrace.pack(image_folder(folder / "src", 1, side=40), folder / "pack").path)
    change_index(made, **columns)
    return made


@pytest.mark.parametrize(
    "columns",
    [
        {"offset": [(1 << 64) - 1]},
        {"offset": [1 << 40]},
        {"size": [1 << 60]},
        {"size": [(1 << 64) - 1]},
        {"size": [1 << 29]},
        {"shard": [7]},
        {"shard": [(1 << 32) - 1]},
    ],
    ids=str,
)
def test_places_outside_of_shards_are_errors_of_their_samples(
    columns: dict[str, list[int]], tmp_path: Path
) -> None:
    dataset = headrace.PackedDataset(pack_of(tmp_path, **columns), STEPS)
    with pytest.raises(headrace.SampleError, match="sample 0"):
        list(headrace.DataLoader(dataset, num_workers=2))
    loader = headrace.DataLoader(dataset, num_workers=2, on_error="skip")
    assert list(loader) == []
    assert [failure.index for failure in loader.stats().failures] == [0]
    assert verify(dataset.root).problems  # type: ignore[arg-type]
    with pytest.raises(headrace.PackError):
        headrace.pack(dataset.root, tmp_path / "dest")  # type: ignore[arg-type]
    if "shard" in columns:
        with pytest.raises(headrace.PackError, match="row 0 is in none of its shards"):
            StoredPack.open(dataset.root).sample(0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["../secret.tar", "/etc/passwd", "a/../../secret.tar"])
def test_an_index_names_no_file_outside_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret.tar").write_bytes(b"the user's own")
    with pytest.raises(headrace.PackError, match="lies outside its folder"):
        headrace.PackedDataset(pack_of(tmp_path, shards=(Shard(name, 14),)))


def test_links_in_a_folder_of_shards_are_the_users(tmp_path: Path, picture: bytes) -> None:
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "real.tar", "w") as tar:
        add(tar, "x.jpg", picture)
    (tmp_path / "shards" / "0.tar").symlink_to(tmp_path / "real.tar")
    build_shard_index(tmp_path / "shards")
    assert headrace.PackedDataset(tmp_path / "shards").key(0) == "x"


@pytest.mark.timeout(60)
def test_a_shard_that_is_no_file(tmp_path: Path) -> None:
    made = pack_of(tmp_path, shards=(Shard("shard-000000.tar", 0),))
    (made / "shard-000000.tar").unlink()
    os.mkfifo(made / "shard-000000.tar")
    with pytest.raises(headrace.PackError, match=r"shard-000000\.tar, which .* names, is not a file"):
        headrace.PackedDataset(made)


LONE = b'{"kind": "tar", "shards": [{"name": "\\ud800", "size": 0}], "classes": [], "made": {}}'


@pytest.mark.parametrize("about", [LONE, b"[" * 100_000, b'{"kind": "tar"}', b"{}", b"7", b'{"kind": [1]}'])
def test_what_an_index_says_of_itself(about: bytes, tmp_path: Path) -> None:
    good = PackAbout("tar", ()).to_metadata()
    schema = COLUMNS.with_metadata({**good, b"headrace.pack.about": about})
    batch = pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)
    with pa.OSFile(str(tmp_path / FILE_NAME), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(headrace.PackError, match="can't be read as a pack's index"):
        headrace.PackedDataset(tmp_path)


# --- LMDBs ---


def test_an_lmdb_that_promises_more_than_it_has(tmp_path: Path, picture: bytes) -> None:
    lmdb, msgpack = pytest.importorskip("lmdb"), pytest.importorskip("msgpack")
    with (
        lmdb.open(str(tmp_path / "x.mdb"), subdir=False, map_size=1 << 24) as env,
        env.begin(write=True) as t,
    ):
        t.put(b"0", msgpack.packb((picture, 3)))
        t.put(b"__len__", msgpack.packb(1 << 60))
    assert headrace.pack(tmp_path / "x.mdb", tmp_path / "dest").samples == 1
    whole = (tmp_path / "x.mdb").read_bytes()
    (tmp_path / "cut.mdb").write_bytes(whole[: len(whole) - 4096])
    with pytest.raises(headrace.PackError, match=r"cut\.mdb has .* bytes and .* pages: it was cut short"):
        headrace.pack(tmp_path / "cut.mdb", tmp_path / "dest2")


# --- pickles ---


class Evil:
    """Its pickle writes a file when it is read."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open, (str(self.place), "w")


def test_no_pickle_is_ever_read(tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    evil = pickle.dumps(Evil(harm))
    torch.save({"version": loop.VERSION, "model": Evil(harm)}, tmp_path / "last.pt")
    with pytest.raises(headrace.ConfigError, match="isn't a checkpoint, or is damaged"):
        loop.load(tmp_path / "last.pt")
    with pytest.raises(headrace.PackError, match="isn't msgpack"):
        parse_value(evil, "key", "x.mdb")
    (tmp_path / FILE_NAME).write_bytes(evil)
    with pytest.raises(headrace.PackError, match="can't be read as a pack's index"):
        headrace.PackedDataset(tmp_path)
    (tmp_path / "x.jpg").write_bytes(evil)
    assert "UnidentifiedImageError" in one_sample(tmp_path / "x.jpg")
    loader = headrace.DataLoader(torch.utils.data.TensorDataset(torch.arange(3)))
    with pytest.raises(headrace.ConfigError, match="must be a dict"):
        loader.load_state_dict(evil)  # type: ignore[arg-type]
    assert not harm.exists()
    pickle.loads(evil).close()
    assert harm.exists(), "it would have been"


# --- states, names ---


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"position": -4}, "position is -4"),
        ({"position": "3"}, "position is '3'"),
        ({"epoch": 1 << 70}, "epoch is"),
        ({"order_seed": [1]}, r"order_seed is \[1\]"),
        ({"generators": "no base64!"}, "generators is"),
        ({"sampler": None}, "sampler is None"),
        ({"streams": [1, 2]}, r"streams is \[1, 2\]"),
        ({"dataset": 7}, "dataset is 7"),
    ],
    ids=str,
)
def test_states_that_were_changed(change: dict[str, Any], told: str) -> None:
    loader = headrace.DataLoader(torch.utils.data.TensorDataset(torch.arange(20)), 4, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    with pytest.raises(headrace.ConfigError, match=f"This state is damaged: {told}"):
        loader.load_state_dict({**state, **change})
    del state[next(iter(change))]
    with pytest.raises(headrace.ConfigError, match="This state is damaged"):
        loader.load_state_dict(state)


def test_names_that_a_terminal_would_obey(tmp_path: Path, picture: bytes) -> None:
    name = "\x1b]0;mine\x07\n[red]<script>.jpg"
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / name).write_bytes(b"no picture")
    with pytest.raises(headrace.SampleError) as caught:
        list(headrace.DataLoader(headrace.ImageDataset([tmp_path / "a" / name], transform=STEPS)))
    assert str(caught.value).isprintable()
    assert r"\x1b]0;mine\x07\n[red]<script>.jpg" in str(caught.value)
    made = Path(headrace.pack(tmp_path, tmp_path / "dest").path)
    shard = made / "shard-000000.tar"
    shard.write_bytes(shard.read_bytes().replace(b"no picture", b"another 12"))
    assert [str(problem).isprintable() for problem in verify(made).problems] == [True]
