"""Where a pack is made: in DEST.partial, so that a DEST is always whole; what is finished there is kept."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.errors import PackError
from headrace.packs.files import naming, sync_folder, whole_file
from headrace.packs.records import Plan
from headrace.sources.pack_index import FILE_NAME, PackIndex

# What a pack may need beside the source's bytes: headers and padding of a sample's members, the fixed columns
# of its row (twice: per shard, and in the index), its entry points (three times, while the index is made).
_PER_SAMPLE = 2560
_SHARE = 0.06


@contextmanager
def workplace(dest: Path, made: dict[str, Any], plan: Plan) -> Iterator[Path]:
    """The folder in which to make `dest`; it gets that name when the body ends without an error.

    Args:
        made: the options; an earlier run's folder is gone on with only where they are the same.
        plan: what will be packed.

    Raises:
        PackError: `dest` holds something, another process makes it, an earlier run had other options or
            another source, or the disk is too small.
    """
    _refuse_to_overwrite(dest)
    folder = partial_of(dest)
    with naming(folder):
        (folder / "parts").mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        _agree(folder, made, plan)
        if not (folder / FILE_NAME).exists():
            _check_space(folder, plan)
        yield folder
        shutil.rmtree(folder / "parts")
        with suppress(FileNotFoundError):
            shutil.rmtree(building_in(folder))
        (folder / "plan.json").unlink(missing_ok=True)
        sync_folder(folder)
        with naming(dest):
            os.rename(folder, dest)
        sync_folder(dest.parent)


def partial_of(dest: Path) -> Path:
    """The name of `dest` until it is whole."""
    return dest.with_name(dest.name + ".partial")


def building_in(folder: Path) -> Path:
    """Where processes of other nodes build shards that are to lie in `folder`; a killed one leaves some."""
    return folder / "building"


def _refuse_to_overwrite(dest: Path) -> None:
    if dest.exists() and not (dest.is_dir() and not any(dest.iterdir())):
        raise PackError(f"{dest} exists already: remove it, or choose another destination.")


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


def _agree(folder: Path, made: dict[str, Any], plan: Plan) -> None:
    """Refuses to go on with another run's work."""
    kept, mine = folder / "plan.json", {**made, "state": plan.state}
    if kept.is_file():
        earlier = json.loads(kept.read_text())
    elif (folder / FILE_NAME).is_file():
        # The plan is the last thing to be removed before the folder gets its name.
        begun = PackIndex(folder / FILE_NAME).about.made
        earlier = {**mine, **{name: begun[name] for name in made}}
    else:
        with whole_file(kept) as file:
            file.write(json.dumps(mine, indent=1, sort_keys=True).encode())
        return
    refuse_other_work(str(folder), earlier, mine)


def refuse_other_work(where: str, earlier: dict[str, Any], mine: dict[str, Any]) -> None:
    """Raises PackError where what was begun at `where` isn't what is to be made now."""
    different = sorted(name for name in {*earlier, *mine} if earlier.get(name) != mine.get(name))
    if different:
        told = {_difference(name, earlier.get(name), mine.get(name)): None for name in different}
        raise PackError(
            f"{where} was begun with {', '.join(told)}. Run the same command to finish it, or remove it to"
            " begin anew."
        )


def _difference(name: str, earlier: Any, now: Any) -> str:
    if name in ("records", "state"):
        return "other files (or they have changed since)"
    return f"{name}={earlier!r} (now {now!r})"


def _check_space(folder: Path, plan: Plan) -> None:
    there = sum(path.stat().st_size for path in folder.glob("*") if path.is_file())
    needed = int(plan.source_bytes * (1 + _SHARE)) + len(plan.records) * _PER_SAMPLE - there
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise PackError(
            f"{folder} may need {needed / 1e9:,.2f} GB, and its disk has {free / 1e9:,.2f} GB free: free some"
            " space, or choose another destination."
        )
