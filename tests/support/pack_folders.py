"""Support for tests of packs: an odd folder, and a pack as names and bytes."""

from __future__ import annotations

import importlib.util
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from headrace.sources.pack_index import COLUMNS, FILE_NAME, PackAbout, PackIndex, write_index
from support.jpegs import image_folder
from support.odd_files import GOOD, ODD_FILES

# Names that tar, WebDataset, Arrow or a careless split at a dot could lose.
ODD_NAMES = (
    "two.dots.jpg",
    "CAPITALS.JPEG",
    "with space.png",
    "50%off.jpg",
    "%2E.jpg",
    "percent%25.jpg",
    "__noted__.jpg",
    "ünïcödé 写真.jpg",
    "x" * 150 + ".jpg",
    "same.jpg",
    "same.png",
    "same.JPG",
    ".jpg",
    "-dash.jpg",
    "deep/er.dir/inside.jpg",
)


def odd_folder(root: Path) -> Path:
    """An ImageFolder tree of every odd file and odd name, and some ordinary images."""
    image_folder(root, 9)
    for i, make in enumerate(ODD_FILES.values()):
        (root / "odd.files").mkdir(exist_ok=True)
        (root / "odd.files" / f"{i:02}.jpeg").write_bytes(make())
    for i, name in enumerate(ODD_NAMES):
        path = root / "__names__" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(GOOD + b"%d" % i)
    return root


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", **fields: Any) -> None:
    """Adds a member to a tar file."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for field, value in fields.items():
        setattr(member, field, value)
    tar.addfile(member, io.BytesIO(data))


def change_index(pack: Path, **columns: Any) -> None:
    """Lets some columns of a pack's index, or its `shards`, say something else."""
    index = PackIndex(pack / FILE_NAME)
    values = [columns.get(name, index.batch[name].to_pylist()) for name in COLUMNS.names]
    shards = columns.get("shards", index.about.shards)
    (pack / FILE_NAME).unlink()
    write_index(pack / FILE_NAME, zip(*values, strict=True), PackAbout("tar", shards))


# Both forms of a pack; LMDBs only where their modules are installed.
HAS_LMDB = all(importlib.util.find_spec(name) for name in ("lmdb", "msgpack"))
FORMATS = [
    "tar",
    pytest.param("lmdb", marks=pytest.mark.skipif(not HAS_LMDB, reason="lmdb or msgpack isn't installed")),
]
