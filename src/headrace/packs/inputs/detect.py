"""Which kind of source a path or object is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import PackError
from headrace.packs.changes import Changes
from headrace.packs.inputs.dataset import dataset_input
from headrace.packs.inputs.folder import FolderInput
from headrace.packs.inputs.ilsvrc import TRAIN, VAL, IlsvrcInput
from headrace.packs.inputs.lmdb import LmdbInput
from headrace.packs.inputs.packs import PackInput, StorePackInput
from headrace.packs.inputs.tree import DiskTree, StoreTree
from headrace.packs.records import Input
from headrace.remote.urls import is_url
from headrace.sources.pack_index import FILE_NAME


def open_input(src: Any, changes: Changes, storage_options: Mapping[str, Any] | None = None) -> Input:
    """The input for `src`; see `headrace.pack`.

    Raises:
        ConfigError: it needs options that weren't given.
        PackError: it isn't there, can't be read, or is of no kind that can be packed.
        RemoteError: the store doesn't answer.
    """
    if is_url(src):
        return _of_store(src, storage_options)
    if not isinstance(src, (str, os.PathLike)):
        return dataset_input(src, changes)
    path = Path(src)
    if not path.exists():
        raise PackError(f"{path} doesn't exist.")
    return _of_folder(path) if path.is_dir() else _of_file(path)


def _of_store(url: str, options: Mapping[str, Any] | None) -> Input:
    tree = StoreTree(url, options)
    if FILE_NAME in tree.beside:
        return StorePackInput(url, options)
    if any(name.endswith(".tar") for name in tree.beside):
        raise PackError(
            f"{url} holds .tar files without an index: only folders of class folders and packs are read from"
            " stores. Run headrace index on the shards before they are uploaded."
        )
    return FolderInput(tree)


def _of_folder(path: Path) -> Input:
    if (path / FILE_NAME).is_file():
        return PackInput(path)
    if (path / "data.mdb").is_file():
        return LmdbInput(path)
    downloads = [tar for name in (TRAIN, VAL) for tar in path.glob(f"{name}.tar")]
    if len(downloads) == 2:
        raise PackError(f"{path} holds two data sets: pack {downloads[0]} and {downloads[1]} one by one.")
    if downloads:
        return IlsvrcInput(downloads[0])
    return PackInput(path) if any(path.glob("*.tar")) else FolderInput(DiskTree(os.fspath(path)))


def _of_file(path: Path) -> Input:
    if path.suffix in (".mdb", ".lmdb"):
        return LmdbInput(path)
    if path.suffix != ".tar":
        raise PackError(f"{path} is neither a folder, a .tar file nor an LMDB (.mdb, .lmdb).")
    return IlsvrcInput(path) if path.stem in (TRAIN, VAL) else PackInput(path)
