"""Targets that are fed with hostile bytes: each takes any, and raises if a law is broken.

A target's law: the only errors are those that the function promises, nothing is read outside the file,
nothing hangs, and what is taken for good can be used.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import tarfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.order.state import VERSION
from headrace.packs.index import build_entry_index
from headrace.packs.info import info
from headrace.packs.lmdb import parse_value
from headrace.packs.pack import pack
from headrace.packs.verify import verify
from headrace.recipes import loop
from headrace.sources.entry_index import EntryIndex
from headrace.sources.folder import ENTRIES_FILE
from headrace.sources.pack_index import FILE_NAME
from headrace.sources.tar_index import image_of, label_of, read_samples
from support.jpegs import image_folder

STEPS = transforms.Compose([transforms.Resize((16, 16)), transforms.PILToTensor()])


@dataclasses.dataclass(frozen=True)
class Target:
    """Something that reads bytes.

    Attributes:
        seeds: valid input.
        run: takes any bytes.
        modules: where to look for new coverage, for an engine that is guided by it.
    """

    seeds: Sequence[bytes]
    run: Callable[[bytes], None]
    modules: tuple[str, ...]


def tar(folder: Path) -> Target:
    """Shards that somebody else made: headers of every format that tarfile writes."""
    place = folder / "shard.tar"

    def run(data: bytes) -> None:
        replace(place, data)
        try:
            for sample in read_samples(place):
                assert sample.offset >= 0
                assert all(field.size >= 0 and field.offset > 0 for field in sample.fields)
                if image_of(sample) is not None:
                    assert label_of(sample, place) >= -1
        except headrace.PackError as error:
            if str(place) not in str(error):
                raise

    seeds = [tar_of(kind) for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    return Target(seeds, run, ("tarfile", "headrace.sources"))


def tar_of(kind: int) -> bytes:
    """A small shard with what each format has a header of its own for."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
        for name, data in (("a.jpg", b"x" * 700), ("a.cls", b"3"), ("b/c.png", b""), ("b/c.cls", b"12")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "../../etc/passwd"
        archive.addfile(link)
        if kind != tarfile.USTAR_FORMAT:
            long = tarfile.TarInfo("deep/" * 40 + "é.jpg")
            long.size = 3
            archive.addfile(long, io.BytesIO(b"abc"))
    return file.getvalue()


def pack_index(folder: Path) -> Target:
    """The index of a pack, which is read where it is mapped."""
    made = Path(pack(image_folder(folder / "src", 4, side=40), folder / "pack").path)
    place = made / FILE_NAME

    def run(data: bytes) -> None:
        replace(place, data)  # what was mapped before stays as it was
        for each in (use_pack, info, lambda path: verify(path, workers=1)):
            try:
                each(made)
            except OSError:  # PackError and SampleError among them; else it names a shard
                continue

    return Target([place.read_bytes()], run, ("headrace.sources", "headrace.packs"))


def use_pack(path: Path) -> None:
    dataset = headrace.PackedDataset(path, STEPS)
    dataset.source.digest()
    dataset.source.count_extensions((".jpg",))
    rows = range(min(len(dataset), 6))
    for i in rows:
        assert isinstance(dataset.source.label(i), int)
    loader = headrace.DataLoader(dataset, 3, num_workers=0, sampler=list(rows), on_error="skip")
    for images, _ in loader:
        assert images.shape[1:] == (3, 16, 16)


def entry_index(folder: Path) -> Target:
    """Entry points that lie beside an image folder, and are looked for by themselves."""
    root = image_folder(folder / "images", 4, side=60)
    place = build_entry_index(root, every=2).path
    dataset = ImageFolder(str(root), STEPS)
    good = torch.stack([dataset[i][0] for i in range(4)])

    def run(data: bytes) -> None:
        replace(place, data)
        try:
            for _ in EntryIndex(place).rows():
                pass
        except (OSError, pa.ArrowException, ValueError):
            pass  # as it says
        loader = headrace.DataLoader(dataset, 4, num_workers=0)
        [(images, _)] = list(loader)
        assert images.shape == good.shape

    assert place.name == ENTRIES_FILE
    return Target([place.read_bytes()], run, ("headrace.sources",))


def lmdb_value(folder: Path) -> Target:
    """A record of an LMDB: msgpack."""

    def run(data: bytes) -> None:
        try:
            sample = parse_value(data, "key", "file.mdb")
        except headrace.PackError:
            return
        assert -1 <= sample.label < 1 << 63
        assert isinstance(sample.image, bytes)

    values: tuple[Any, ...] = (
        (b"\xff\xd8\xff" + b"x" * 20, 7),
        (b"", None),
        (b"GIF89a", 1 << 40, {"txt": b"words"}),
        [[[]]],
    )
    return Target([msgpack.packb(value) for value in values], run, ("headrace.packs", "msgpack"))


def state_dict(folder: Path) -> Target:
    """A loader's state, as JSON: what checkpoints keep."""
    dataset = torch.utils.data.TensorDataset(torch.arange(20))

    def loader() -> headrace.DataLoader:
        return headrace.DataLoader(dataset, 4, shuffle=True, num_workers=0)

    first = loader()
    iterator = iter(first)
    next(iterator)

    def run(data: bytes) -> None:
        try:
            state = json.loads(data)
        except (ValueError, RecursionError):
            return
        second = loader()
        try:
            second.load_state_dict(state)
            batches = [batch for (batch,) in second]
        except headrace.ConfigError:
            return
        assert all(0 <= int(batch.min()) <= int(batch.max()) < 20 for batch in batches)

    assert first.state_dict()["version"] == VERSION
    seeds = [json.dumps(first.state_dict()).encode(), json.dumps(loader().state_dict()).encode()]
    return Target(seeds, run, ("headrace.order", "headrace.loader"))


def train_checkpoint(folder: Path) -> Target:
    """A checkpoint of `headrace train`, which torch reads with weights_only=True."""
    place = folder / "last.pt"

    def run(data: bytes) -> None:
        replace(place, data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                state = loop.load(place)
            except headrace.ConfigError:
                return
        assert isinstance(state, dict)

    seeds = []
    for zipped in (True, False):
        torch.save(
            {"version": loop.VERSION, "model": {"w": torch.ones(3)}, "epoch": 2},
            place,
            _use_new_zipfile_serialization=zipped,
        )
        seeds.append(place.read_bytes())
    return Target(seeds, run, ("headrace.recipes", "torch._weights_only_unpickler"))


TARGETS: dict[str, Callable[[Path], Target]] = {
    made.__name__: made for made in (tar, pack_index, entry_index, lmdb_value, state_dict, train_checkpoint)
}


def replace(place: Path, data: bytes) -> None:
    """A new file each time: the old one may be mapped into memory."""
    new = place.with_name(place.name + ".new")
    new.write_bytes(data)
    os.replace(new, place)
