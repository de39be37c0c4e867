"""Places to make packs: folders on a disk or in an object store. Finished shards are kept there."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace._files import sync_folder
from headrace.errors import PackError
from headrace.packs.places import DiskFolder
from headrace.packs.rows import Part, naming, pack_file, part_path
from headrace.packs.samples import Layout
from headrace.packs.tar import shard_name
from headrace.sources.pack_index import FILE_NAME, PackIndex
from headrace.sources.stores.client import is_url
from headrace.sources.stores.store import FileInfo, Store

# What a pack may need on top of the source's bytes: headers and padding of a sample's members, the fixed
# columns of its row (twice: per shard, and in the index), its entry points (three times, while the index is
# made).
_PER_SAMPLE = 2560
_SHARE = 0.06

# Rows of shards that are fetched at a time.
FETCHES = 8

PLAN = "plan.json"


class Destination:
    """A folder that becomes a pack.

    On a disk the work is done in ``….partial`` next to it, which gets its name at the end; nodes that build
    shards together share it. In a store shards get their names as they are finished, and the index makes them
    a pack; what isn't needed in the end, the plan and the shards' rows, lies in ``….partial``.

    Attributes:
        path: the pack's path, or its URL.
        in_store: whether it is in a store.
    """

    def __init__(self, dest: str | os.PathLike[str], options: Mapping[str, Any] | None) -> None:
        self.in_store = is_url(dest)
        url = str(dest).rstrip("/") if self.in_store else os.path.abspath(dest)
        folders: list[Store | DiskFolder] = [
            Store(each, options) if self.in_store else DiskFolder(each) for each in (url, f"{url}.partial")
        ]
        self._pack, self._work = folders
        self._shards = self._pack if self.in_store else self._work  # as long as the pack isn't whole
        self.path: Path | str = url if self.in_store else Path(url)
        self._partial = Path(f"{url}.partial")
        # Where processes of other nodes build shards; a killed one leaves some.
        self._building = self._partial / "building"

    def existing(self) -> tuple[PackIndex, dict[str, FileInfo]] | None:
        """The index of the finished pack that is there, and its files by name, or None if there is none."""
        if not self.in_store:
            index = Path(self.path) / FILE_NAME
            return (PackIndex(index), _files(self._pack)) if index.is_file() else None
        files = _files(self._pack)
        if FILE_NAME not in files or PLAN in _files(self._work):
            return None
        with self.building() as folder:
            (folder / FILE_NAME).write_bytes(self._pack.read(FILE_NAME))
            return PackIndex(folder / FILE_NAME), files

    @contextmanager
    def workplace(self, made: dict[str, Any], layout: Layout) -> Iterator[Path]:
        """The local folder in which to make the pack, which is whole if the body ends without an error.

        Two processes that make the same pack in a store at a time aren't distinguished: they write the same
        bytes. Raises PackError if the destination holds something else, another process makes it, an earlier
        run had other options (`made`) or another source, or the disk is too small.
        """
        plan = {**made, "state": layout.state}
        with self._in_store(plan) if self.in_store else self._on_disk(plan, layout) as folder:
            yield folder

    @contextmanager
    def _on_disk(self, plan: dict[str, Any], layout: Layout) -> Iterator[Path]:
        dest, folder = Path(self.path), self._partial
        if dest.exists() and not (dest.is_dir() and not any(dest.iterdir())):
            raise exists(str(dest))
        with naming(folder):
            (folder / "parts").mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            if not self._continues(plan):
                with pack_file(folder / PLAN) as file:
                    file.write(_to_json(plan))
            if not (folder / FILE_NAME).exists():
                _check_space(folder, layout)
            yield folder
            shutil.rmtree(folder / "parts")
            with suppress(FileNotFoundError):
                shutil.rmtree(self._building)
            (folder / PLAN).unlink(missing_ok=True)
            sync_folder(folder)
            with naming(dest):
                os.rename(folder, dest)
            sync_folder(dest.parent)

    @contextmanager
    def _in_store(self, plan: dict[str, Any]) -> Iterator[Path]:
        pack, work = self._pack, self._work
        assert isinstance(pack, Store) and isinstance(work, Store)  # noqa: PT018
        there = _files(pack)
        if not self._continues(plan):
            if there:
                raise exists(pack.url)
            work.write(PLAN, _to_json(plan))
        with self.building() as folder:
            if FILE_NAME in there:
                (folder / FILE_NAME).write_bytes(pack.read(FILE_NAME))
            yield folder
            pack.write(FILE_NAME, folder / FILE_NAME)
            # The plan goes last: until then the same command continues.
            work.remove(_files(work).keys() - {PLAN})
            work.remove([PLAN])

    def _continues(self, plan: dict[str, Any]) -> bool:
        """Returns whether an earlier run has left work. Raises PackError if that was for another pack."""
        if PLAN in _files(self._work):
            earlier = json.loads(self._work.read(PLAN))
        elif not self.in_store and (self._partial / FILE_NAME).is_file():
            # The plan is the last thing to be removed before the folder gets its name.
            earlier = {**PackIndex(self._partial / FILE_NAME).about.made, "state": plan["state"]}
            earlier = {name: earlier.get(name) for name in plan}
        else:
            return False
        if different := differences(earlier, plan):
            raise PackError(
                f"{self._work.url} was started with {different}. Run the same command to finish it, or remove"
                " it to start again."
            )
        return True

    def parts(self, folder: Path, count: int) -> list[Part | None]:
        """The rows of each shard, kept in `folder`, too, or None for shards that have to be written."""
        shards, rows = _files(self._shards), _files(self._work)

        def read(shard: int) -> Part | None:
            path = part_path(folder, shard)
            name = path.relative_to(folder).as_posix()
            if shard_name(shard) not in shards or name not in rows:
                return None
            if not path.is_file():
                with pack_file(path) as file:
                    file.write(self._work.read(name))
            part = Part.read(path)
            return part if part is not None and part.shard_bytes == shards[shard_name(shard)].size else None

        with ThreadPoolExecutor(FETCHES) as several:
            return list(several.map(read, range(count)))

    @contextmanager
    def building(self) -> Iterator[Path]:
        """A local folder to build a shard in, on any node. Raises PackError."""
        place = None
        if not self.in_store:
            if not self._partial.is_dir():
                raise PackError(
                    f"{self._partial} isn't there on {socket.gethostname()}: nodes that build shards together"
                    " need a folder that all of them share, or a store's URL."
                )
            place = self._building
            place.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="headrace-pack-", dir=place) as folder:
            part_path(Path(folder), 0).parent.mkdir()
            yield Path(folder)

    def keep(self, folder: Path, shard: int) -> None:
        """Puts a shard that was built in `folder` where it counts: its rows last. Raises PackError."""
        shard_path, rows_path = folder / shard_name(shard), part_path(folder, shard)
        if isinstance(self._pack, Store) and isinstance(self._work, Store):
            self._pack.write(shard_name(shard), shard_path)
            shard_path.unlink()
            self._work.write(rows_path.relative_to(folder).as_posix(), rows_path)
            return
        with naming(self._partial):
            os.replace(shard_path, self._partial / shard_name(shard))
            os.replace(rows_path, part_path(self._partial, shard))


def exists(place: str, differences: str = "") -> PackError:
    """The error for a destination that holds something else than the pack to make."""
    made = f" and was made with {differences}" if differences else ""
    return PackError(f"{place} exists already{made}: remove it, or choose another destination.")


def differences(earlier: dict[str, Any], mine: dict[str, Any]) -> str:
    """Names the options or files that differ, for people; empty if none do."""
    names = sorted(name for name in {*earlier, *mine} if earlier.get(name) != mine.get(name))
    described = dict.fromkeys(
        "other files (or they have changed since)"
        if name in ("records", "state")
        else f"{name}={earlier.get(name)!r} (now {mine.get(name)!r})"
        for name in names
    )
    return ", ".join(described)


def _files(folder: Store | DiskFolder) -> dict[str, FileInfo]:
    return {file.name: file for file in folder.list()}


def _to_json(plan: dict[str, Any]) -> bytes:
    return json.dumps(plan, indent=1, sort_keys=True).encode()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PackError(f"{folder} is being written by another headrace pack: wait for it.") from None
        yield
    finally:
        os.close(handle)


def _check_space(folder: Path, layout: Layout) -> None:
    there = sum(path.stat().st_size for path in folder.glob("*") if path.is_file())
    needed = int(layout.source_bytes * (1 + _SHARE)) + len(layout.items) * _PER_SAMPLE - there
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise PackError(
            f"{folder} may need {needed / 1e6:,.1f} MB, and its disk has {free / 1e6:,.1f} MB free: free some"
            " space, or choose another destination."
        )
