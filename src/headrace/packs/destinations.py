"""Where a pack is made: on a disk, or in a store. Seen by who leads the work, and by who builds shards."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from headrace.errors import PackError, RemoteError
from headrace.packs.files import naming, whole_file
from headrace.packs.pipeline import Shards
from headrace.packs.records import Plan
from headrace.packs.rows import Part, part_path
from headrace.packs.tar_shards import shard_name
from headrace.packs.workplace import building_in, partial_of, refuse_other_work, workplace
from headrace.remote.store import Store
from headrace.sources.pack_index import FILE_NAME

# Rows of shards that are fetched at a time.
FETCHES = 8

PLAN = "plan.json"


class FolderDestination:
    """A folder on a disk; for shards that other nodes build, one that they share.

    Args:
        path: absolute.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def workplace(self, made: dict[str, Any], plan: Plan) -> AbstractContextManager[Path]:
        """See `headrace.packs.workplace`."""
        return workplace(self.path, made, plan)

    def finished(self, shards: Shards, plan: Plan) -> set[int]:
        """Shards that needn't be written again."""
        return {shard for shard in range(plan.shards) if shards.part(shard) is not None}

    def parts(self, shards: Shards, plan: Plan) -> list[Part]:
        """The rows of all shards, once these are written. Raises PackError."""
        parts = [shards.part(shard) for shard in range(plan.shards)]
        for shard, part in enumerate(parts):
            if part is None:
                raise _changed(f"{self.path / shard_name(shard)}")
        return [part for part in parts if part is not None]

    @contextmanager
    def building(self) -> Iterator[Path]:
        """A folder to build a shard in, on any node. Raises PackError."""
        partial = partial_of(self.path)
        if not partial.is_dir():
            raise PackError(
                f"{partial} isn't there on {socket.gethostname()}: nodes that build shards together need a"
                " folder that all of them share, or a store's URL."
            )
        with naming(partial):
            building_in(partial).mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=building_in(partial)) as folder:
                part_path(Path(folder), 0).parent.mkdir()
                yield Path(folder)

    def keep(self, folder: Path, shard: int) -> None:
        """Puts a shard that was built in `folder` where it counts: its rows last. Raises PackError."""
        partial = partial_of(self.path)
        with naming(partial):
            os.replace(folder / shard_name(shard), partial / shard_name(shard))
            os.replace(part_path(folder, shard), part_path(partial, shard))


class StoreDestination:
    """A folder of a store: shards get their names as they are finished, and the index makes them a pack.

    What isn't needed in the end lies in a folder beside it, ``….partial``: the plan and the shards' rows.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        self._store = Store(url, options)
        self._partial = self._store.sibling(".partial")
        self.path = self._store.url

    def __str__(self) -> str:
        return self._store.url

    @contextmanager
    def workplace(self, made: dict[str, Any], plan: Plan) -> Iterator[Path]:
        """A folder on this machine for the pack's rows and index; see `headrace.packs.workplace`.

        Two that make the same pack at a time aren't told apart: they write the same bytes.

        Raises:
            PackError: the store holds something there, or an earlier run had other options or another source.
            RemoteError: the store can't be read or written.
        """
        there = self._agree(made, plan)
        with tempfile.TemporaryDirectory(prefix="headrace-pack-") as name:
            folder = Path(name)
            part_path(folder, 0).parent.mkdir()
            if FILE_NAME in there:
                (folder / FILE_NAME).write_bytes(self._store.read(FILE_NAME))
            yield folder
            self._store.write(FILE_NAME, folder / FILE_NAME)
            # The plan goes last: until then the same command goes on.
            self._partial.remove(each.name for each in self._partial.list() if each.name != PLAN)
            self._partial.remove([PLAN])

    def finished(self, shards: Shards, plan: Plan) -> set[int]:
        """See `FolderDestination`."""
        del shards
        there = {each.name for each in self._store.list()}
        rows = {each.name for each in self._partial.list()}
        return {
            shard
            for shard in range(plan.shards)
            if shard_name(shard) in there and part_path(Path(), shard).as_posix() in rows
        }

    def parts(self, shards: Shards, plan: Plan) -> list[Part]:
        """See `FolderDestination`."""
        folder = shards.folder
        sizes = {each.name: each.size for each in self._store.list()}

        def fetched(shard: int) -> Part:
            path = part_path(folder, shard)
            with whole_file(path) as file:
                file.write(self._partial.read(path.relative_to(folder).as_posix()))
            part = Part.read(path)
            if part is None or part.shard_bytes != sizes.get(shard_name(shard)):
                raise _changed(self._store.at(shard_name(shard)))
            return part

        with ThreadPoolExecutor(FETCHES) as several:
            return list(several.map(fetched, range(plan.shards)))

    @contextmanager
    def building(self) -> Iterator[Path]:
        """See `FolderDestination`."""
        with tempfile.TemporaryDirectory(prefix="headrace-shard-") as folder:
            part_path(Path(folder), 0).parent.mkdir()
            yield Path(folder)

    def keep(self, folder: Path, shard: int) -> None:
        """See `FolderDestination`."""
        self._store.write(shard_name(shard), folder / shard_name(shard))
        path = part_path(folder, shard)
        self._partial.write(path.relative_to(folder).as_posix(), path)

    def _agree(self, made: dict[str, Any], plan: Plan) -> set[str]:
        """Names of what is there, which is this pack's. Raises PackError where it is another's."""
        there = {each.name for each in self._store.list()}
        mine = {**made, "state": plan.state}
        try:
            earlier = json.loads(self._partial.read(PLAN))
        except RemoteError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            if there:
                raise PackError(
                    f"{self._store.url} exists already: remove it, or choose another destination."
                ) from None
            self._partial.write(PLAN, json.dumps(mine, indent=1, sort_keys=True).encode())
            return there
        refuse_other_work(self._partial.url, earlier, mine)
        return there


Destination = FolderDestination | StoreDestination


def _changed(shard: str) -> PackError:
    return PackError(f"{shard} has been changed by others while it was made: remove it and run it again.")
