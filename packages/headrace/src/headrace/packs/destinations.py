"""Where a pack is made: in a folder on a disk, or in an object store. What is finished there is kept."""

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
from headrace.errors import PackError, RemoteError
from headrace.packs.lmdb import LmdbShards
from headrace.packs.records import Plan
from headrace.packs.rows import Part, naming, pack_file, part_path
from headrace.packs.tar import TarShards, shard_name
from headrace.remote.store import Found, Store
from headrace.sources.pack_index import FILE_NAME, PackIndex

# What a pack may need on top of the source's bytes: headers and padding of a sample's members, the fixed
# columns of its row (twice: per shard, and in the index), its entry points (three
# times, while the index is made).
_PER_SAMPLE = 2560
_SHARE = 0.06


# Rows of shards that are fetched at a time.
FETCHES = 8

PLAN = "plan.json"

Shards = TarShards | LmdbShards


class FolderDestination:
    """A folder on a disk; for shards that other nodes build, one that they share.

    The work is done in ``….partial`` next to it, which gets the name of the folder at the end.

    Args:
        path: absolute.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path.with_name(path.name + ".partial")
        # Where processes of other nodes build shards; a killed one leaves some.
        self._building = self._partial / "building"

    def __str__(self) -> str:
        return str(self.path)

    def existing(self) -> tuple[PackIndex, dict[str, Found]] | None:
        """The index of the finished pack that is there, and its files by name; None: there is none."""
        if not (self.path / FILE_NAME).is_file():
            return None
        found = {}
        for path in self.path.iterdir():
            info = path.stat()
            found[path.name] = Found(path.name, info.st_size, "", info.st_mtime_ns)
        return PackIndex(self.path / FILE_NAME), found

    @contextmanager
    def workplace(self, made: dict[str, Any], plan: Plan) -> Iterator[Path]:
        """The folder in which to make the pack; it gets the pack's name when the body ends without an error.

        Args:
            made: the options; an earlier run's work is continued only where they are the same.
            plan: what will be packed.

        Raises:
            PackError: the destination holds something, another process makes it, an earlier run had other
                options or another source, or the disk is too small.
        """
        dest, folder = self.path, self._partial
        if dest.exists() and not (dest.is_dir() and not any(dest.iterdir())):
            raise exists(str(dest))
        with naming(folder):
            (folder / "parts").mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            self._check_plan(made, plan)
            if not (folder / FILE_NAME).exists():
                _check_space(folder, plan)
            yield folder
            shutil.rmtree(folder / "parts")
            with suppress(FileNotFoundError):
                shutil.rmtree(self._building)
            (folder / PLAN).unlink(missing_ok=True)
            sync_folder(folder)
            with naming(dest):
                os.rename(folder, dest)
            sync_folder(dest.parent)

    def finished(self, shards: Shards, plan: Plan) -> set[int]:
        """Shards that needn't be written again."""
        return {shard for shard in range(plan.shards) if shards.part(shard) is not None}

    def parts(self, shards: Shards, plan: Plan) -> list[Part]:
        """The rows of all shards, once these are written. Raises PackError."""
        parts = []
        for shard in range(plan.shards):
            part = shards.part(shard)
            if part is None:
                raise _changed(f"{self.path / shard_name(shard)}")
            parts.append(part)
        return parts

    @contextmanager
    def building(self) -> Iterator[Path]:
        """A folder to build a shard in, on any node. Raises PackError."""
        if not self._partial.is_dir():
            raise PackError(
                f"{self._partial} isn't there on {socket.gethostname()}: nodes that build shards together"
                " need a folder that all of them share, or a store's URL."
            )
        with naming(self._partial):
            self._building.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._building) as folder:
                part_path(Path(folder), 0).parent.mkdir()
                yield Path(folder)

    def keep(self, folder: Path, shard: int) -> None:
        """Puts a shard that was built in `folder` where it counts: its rows last. Raises PackError."""
        with naming(self._partial):
            os.replace(folder / shard_name(shard), self._partial / shard_name(shard))
            os.replace(part_path(folder, shard), part_path(self._partial, shard))

    def _check_plan(self, made: dict[str, Any], plan: Plan) -> None:
        """Refuses to continue another run's work."""
        folder, mine = self._partial, {**made, "state": plan.state}
        if (folder / PLAN).is_file():
            earlier = json.loads((folder / PLAN).read_text())
        elif (folder / FILE_NAME).is_file():
            # The plan is the last thing to be removed before the folder gets its name.
            started = PackIndex(folder / FILE_NAME).about.made
            earlier = {**mine, **{name: started[name] for name in made}}
        else:
            with pack_file(folder / PLAN) as file:
                file.write(json.dumps(mine, indent=1, sort_keys=True).encode())
            return
        _refuse_other_work(str(folder), earlier, mine)


class StoreDestination:
    """A folder of a store: shards get their names as they are finished, and the index makes them a pack.

    What isn't needed in the end lies in a folder next to it, ``….partial``: the plan and the shards' rows.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        self._store = Store(url, options)
        self._partial = Store(f"{self._store.url}.partial", options)
        self.path = self._store.url

    def __str__(self) -> str:
        return self._store.url

    def existing(self) -> tuple[PackIndex, dict[str, Found]] | None:
        found = {each.name: each for each in self._store.list()}
        if FILE_NAME not in found or any(each.name == PLAN for each in self._partial.list()):
            return None
        with tempfile.TemporaryDirectory(prefix="headrace-pack-") as name:
            path = Path(name) / FILE_NAME
            path.write_bytes(self._store.read(FILE_NAME))
            return PackIndex(path), found

    @contextmanager
    def workplace(self, made: dict[str, Any], plan: Plan) -> Iterator[Path]:
        """A folder on this machine for the pack's rows and index; see `FolderDestination`.

        Two processes that make the same pack at a time aren't distinguished: they write the same bytes.

        Raises:
            PackError: the store holds something there, or an earlier run had other options or another source.
            RemoteError: the store can't be read or written.
        """
        there = self._check_plan(made, plan)
        with tempfile.TemporaryDirectory(prefix="headrace-pack-") as name:
            folder = Path(name)
            part_path(folder, 0).parent.mkdir()
            if FILE_NAME in there:
                (folder / FILE_NAME).write_bytes(self._store.read(FILE_NAME))
            yield folder
            self._store.write(FILE_NAME, folder / FILE_NAME)
            # The plan goes last: until then the same command continues.
            self._partial.remove(each.name for each in self._partial.list() if each.name != PLAN)
            self._partial.remove([PLAN])

    def finished(self, shards: Shards, plan: Plan) -> set[int]:
        del shards
        there = {each.name for each in self._store.list()}
        rows = {each.name for each in self._partial.list()}
        return {
            shard
            for shard in range(plan.shards)
            if shard_name(shard) in there and part_path(Path(), shard).as_posix() in rows
        }

    def parts(self, shards: Shards, plan: Plan) -> list[Part]:
        folder = shards.folder
        sizes = {each.name: each.size for each in self._store.list()}

        def fetched(shard: int) -> Part:
            path = part_path(folder, shard)
            with pack_file(path) as file:
                file.write(self._partial.read(path.relative_to(folder).as_posix()))
            part = Part.read(path)
            if part is None or part.shard_bytes != sizes.get(shard_name(shard)):
                raise _changed(self._store.at(shard_name(shard)))
            return part

        with ThreadPoolExecutor(FETCHES) as several:
            return list(several.map(fetched, range(plan.shards)))

    @contextmanager
    def building(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="headrace-shard-") as folder:
            part_path(Path(folder), 0).parent.mkdir()
            yield Path(folder)

    def keep(self, folder: Path, shard: int) -> None:
        self._store.write(shard_name(shard), folder / shard_name(shard))
        path = part_path(folder, shard)
        self._partial.write(path.relative_to(folder).as_posix(), path)

    def _check_plan(self, made: dict[str, Any], plan: Plan) -> set[str]:
        """Names of what is there, which is this pack's. Raises PackError where it is another's."""
        there = {each.name for each in self._store.list()}
        mine = {**made, "state": plan.state}
        try:
            earlier = json.loads(self._partial.read(PLAN))
        except RemoteError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            if there:
                raise exists(self._store.url) from None
            self._partial.write(PLAN, json.dumps(mine, indent=1, sort_keys=True).encode())
            return there
        _refuse_other_work(self._partial.url, earlier, mine)
        return there


Destination = FolderDestination | StoreDestination


def exists(place: str, differences: str = "") -> PackError:
    """The error for a destination that holds something else than the pack to make."""
    made = f" and was made with {differences}" if differences else ""
    return PackError(f"{place} exists already{made}: remove it, or choose another destination.")


def _changed(shard: str) -> PackError:
    return PackError(f"{shard} has been changed by others while it was made: remove it and run it again.")


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


def _refuse_other_work(where: str, earlier: dict[str, Any], mine: dict[str, Any]) -> None:
    """Raises PackError where the work at `where` was started for another pack than this one."""
    different = differences(earlier, mine)
    if different:
        raise PackError(
            f"{where} was started with {different}. Run the same command to finish it, or remove it to start"
            " again."
        )


def differences(earlier: dict[str, Any], mine: dict[str, Any]) -> str:
    """Which options or files differ, for people; empty: none."""
    names = sorted(name for name in {*earlier, *mine} if earlier.get(name) != mine.get(name))
    described = dict.fromkeys(
        "other files (or they have changed since)"
        if name in ("records", "state")
        else f"{name}={earlier.get(name)!r} (now {mine.get(name)!r})"
        for name in names
    )
    return ", ".join(described)


def _check_space(folder: Path, plan: Plan) -> None:
    there = sum(path.stat().st_size for path in folder.glob("*") if path.is_file())
    needed = int(plan.source_bytes * (1 + _SHARE)) + len(plan.records) * _PER_SAMPLE - there
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise PackError(
            f"{folder} may need {needed / 1e9:,.2f} GB, and its disk has {free / 1e9:,.2f} GB free: free some"
            " space, or choose another destination."
        )
