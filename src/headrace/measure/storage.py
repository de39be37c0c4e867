"""How fast the user's own files can be read from their storage, bypassing the page cache.

Nothing is written: existing files are read, for about two seconds per path.
"""

from __future__ import annotations

import itertools
import mmap
import os
import random
import re
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from headrace.errors import require

# Offsets and lengths of direct reads are multiples of the device's block, at most this on today's devices.
BLOCK = 4096
# Linux reads ahead, and splits, in units of 128 KiB to 1 MiB: sequential reads by less measure system calls.
SEQUENTIAL_READ = 1 << 20
SEQUENTIAL_BYTES = 256 << 20
# An image of ImageNet has 115 kB on average (147.9 GB in 1,281,167 files).
RANDOM_READ = 128 << 10
# As many as Headrace keeps in flight once reads wait, and as 32 workers of torch's DataLoader do.
IN_FLIGHT = 32
# Files above it are containers of many samples (tar shards, LMDB): read in part, and in a row.
LARGE_FILE = 8 << 20
# Seconds for each part, together about two.
FIND, RANDOM, PARALLEL, SEQUENTIAL = 0.4, 0.4, 0.5, 0.5
MOST_FILES = 50_000
MOST_PLACES = 8192
BLOCK_DEVICES = Path("/sys/class/block")
Place = Literal["local", "memory", "network", "host", "fuse", "layers"]
# Kinds of file system by where reads go; what isn't named is local. "host": a folder of the machine that runs
# this one (virtual machine, WSL, Docker Desktop), by way of a protocol as over a network.
FUSE_OVER_NETWORK = (
    "sshfs s3fs mountpoint-s3 mount-s3 gcsfuse goofys rclone blobfuse2 juicefs JuiceFS ceph ceph-fuse"
    " glusterfs seaweedfs"
)
PLACES: dict[str, Place] = {
    **dict.fromkeys(("tmpfs", "ramfs"), "memory"),
    **dict.fromkeys(("overlay", "aufs"), "layers"),
    **dict.fromkeys(("9p", "virtiofs", "vboxsf", "prl_fs", "fuse.vmhgfs-fuse"), "host"),
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "glusterfs"), "network"),
    **dict.fromkeys(("ceph", "lustre", "beegfs", "gpfs", "wekafs", "pvfs2"), "network"),
    **dict.fromkeys([f"fuse.{name}" for name in FUSE_OVER_NETWORK.split()], "network"),
}
# FUSE programs that keep their files on a disk of this machine.
LOCAL_FUSE = ("fuseblk", "fuse.ntfs-3g", "fuse.exfat", "fuse.mergerfs", "fuse.fuse-overlayfs")


@dataclass(frozen=True)
class Mount:
    """A mounted file system.

    Attributes:
        point: where it is mounted.
        kind: file system as the kernel names it: "ext4", "nfs4", "fuse.sshfs".
        place: where its reads go.
        source: the device, the server's path, or another name of the source.
        rotational: whether the disk reports that it rotates, often wrongly for virtual disks; None: no block
            device, or unknown.
        virtual: whether the block device is a hypervisor's, of any kind and possibly with a cache.
    """

    point: Path
    kind: str
    place: Place
    source: str
    rotational: bool | None = None
    virtual: bool = False


@dataclass(frozen=True)
class Reads:
    """Number of reads, bytes and seconds, opening the files included."""

    reads: int
    bytes: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Of all threads together."""
        return self.bytes / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class Rates:
    """How fast the files were read.

    Attributes:
        direct: whether O_DIRECT bypassed the page cache; otherwise the kernel was asked to drop the files'
            pages first (posix_fadvise), which is only a request.
        random: of 128 KiB at random places, whole files where they are smaller, one read at a time.
        parallel: the same with 32 reads in flight.
        sequential: of 1 MiB after the other, from large files if there are any, else whole files in their
            folders' order.
        failures: files that couldn't be read, each with the system's reason.
    """

    direct: bool
    random: Reads
    parallel: Reads
    sequential: Reads
    failures: tuple[str, ...]


@dataclass(frozen=True)
class Storage:
    """The storage of a folder or file, and its rates.

    Attributes:
        path: as given by the user.
        mount: the file system of the files that were read; None: unknown.
        files: number of files found, of 4 KiB and more.
        bytes: their sum.
        complete: whether these are all: the search ended before its time limit.
        rates: None: there are no files.
    """

    path: Path
    mount: Mount | None
    files: int
    bytes: int
    complete: bool
    rates: Rates | None = None


class _File(NamedTuple):
    path: str
    size: int


def mount_of(path: Path, devices: Path = BLOCK_DEVICES) -> Mount | None:
    """The file system that holds `path`; None where the system doesn't say."""
    path = path.resolve()
    partitions = require("psutil", "doctor").disk_partitions(all=True)
    # Of mounts on one point the last is on top of the others.
    above = [one for one in partitions if path.is_relative_to(one.mountpoint)]
    best = max(enumerate(above), key=lambda one: (len(Path(one[1].mountpoint).parts), one[0]), default=None)
    if best is None:
        return None
    _, found = best
    fuse = found.fstype.startswith("fuse.") and found.fstype not in LOCAL_FUSE
    device = (devices / Path(found.device).resolve().name).resolve()
    return Mount(
        point=Path(found.mountpoint),
        kind=found.fstype,
        place=PLACES.get(found.fstype, "fuse" if fuse else "local"),
        source=found.device,
        rotational=_rotational(device) if found.device.startswith("/dev/") else None,
        virtual=re.match(r"/dev/(vd|xvd)[a-z]", found.device) is not None,
    )


def _rotational(device: Path) -> bool | None:
    """By sysfs; a partition has no queue of its own, its disk, one folder up, has."""
    for folder in (device, device.parent):
        with suppress(OSError):
            return (folder / "queue" / "rotational").read_text().strip() == "1"
    return None


def measure_storage(path: Path) -> Storage:
    """Reads files at or below `path`, which must exist, for about two seconds.

    Raises:
        OSError: there is no such path, or it can't be listed.
    """
    files, complete = _find(path)
    found = Storage(
        path=path,
        mount=mount_of(Path(files[0].path) if files else path),
        files=len(files),
        bytes=sum(file.size for file in files),
        complete=complete,
    )
    if not files:
        return found
    failures: dict[str, None] = {}  # in their order, each once
    rng = random.Random()
    places = _places(files, rng)
    direct = any(_is_direct(file) for file in files[:10])
    # One pass over the places, not three: what lies below (a server, a hypervisor) has a cache of its own.
    endless = itertools.cycle(places)
    large = [file for file in files if file.size >= LARGE_FILE]
    alone = _read_places(endless, direct, 1, RANDOM, failures)
    parallel = _read_places(endless, direct, IN_FLIGHT, PARALLEL, failures)
    sequential = _read_rows(large or files, direct, failures)
    return replace(found, rates=Rates(direct, alone, parallel, sequential, tuple(failures)))


def _find(path: Path) -> tuple[list[_File], bool]:
    """Files at or below `path`, and whether these are all."""
    if path.is_file():
        return [_File(str(path), path.stat().st_size)], True
    end = time.perf_counter() + FIND
    files: list[_File] = []
    status = path.stat()
    folders, seen = [str(path)], {(status.st_dev, status.st_ino)}
    while folders:
        folder = folders.pop()
        for entry in _entries(folder, required=folder == str(path)):
            if time.perf_counter() > end or len(files) >= MOST_FILES:
                return files, False
            try:
                status = entry.stat()
            except OSError:
                continue  # a broken link, or deleted meanwhile
            if stat.S_ISREG(status.st_mode) and status.st_size >= BLOCK:
                files.append(_File(entry.path, status.st_size))
            identity = (status.st_dev, status.st_ino)
            if stat.S_ISDIR(status.st_mode) and identity not in seen:  # links to folders may go round
                seen.add(identity)
                folders.append(entry.path)
    return files, True


def _entries(folder: str, *, required: bool) -> list[os.DirEntry[str]]:
    """What is in a folder, by name; nothing if it isn't required and this user can't list it."""
    try:
        return sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        if required:
            raise
        return []


def _places(files: list[_File], rng: random.Random) -> list[tuple[_File, int]]:
    """(file, offset) of random reads in random order, each place once where there are few."""
    counts = [max(1, file.size // RANDOM_READ) for file in files]
    if sum(counts) <= MOST_PLACES:
        places = [(f, i * RANDOM_READ) for f, n in zip(files, counts, strict=True) for i in range(n)]
        rng.shuffle(places)
        return places
    chosen = rng.choices(range(len(files)), counts, k=MOST_PLACES)
    return [(files[i], rng.randrange(counts[i]) * RANDOM_READ) for i in chosen]


def _is_direct(file: _File) -> bool:
    """Whether the file system takes reads by O_DIRECT."""
    try:
        with _opened(file, direct=True) as handle, mmap.mmap(-1, BLOCK) as page:
            return os.preadv(handle, [page], 0) > 0
    except (OSError, AttributeError):  # a system without O_DIRECT
        return False


@contextmanager
def _opened(file: _File, direct: bool) -> Iterator[int]:
    handle = os.open(file.path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    try:
        if not direct:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        yield handle
    finally:
        os.close(handle)


def _read_places(
    places: Iterator[tuple[_File, int]], direct: bool, threads: int, seconds: float, failures: dict[str, None]
) -> Reads:
    begin = time.perf_counter()
    end = begin + seconds

    def read() -> tuple[int, int]:
        reads = size = 0
        with mmap.mmap(-1, RANDOM_READ) as buffer:  # aligned to pages, as direct reads need it
            while time.perf_counter() < end:
                file, offset = next(places)
                try:
                    with _opened(file, direct) as handle:
                        if not direct:
                            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
                        size += os.preadv(handle, [buffer], offset)
                        reads += 1
                except OSError as error:
                    failures[f"{file.path}: {error.strerror}"] = None
        return reads, size

    with ThreadPoolExecutor(threads) as pool:
        done = [future.result() for future in [pool.submit(read) for _ in range(threads)]]
    return Reads(sum(r for r, _ in done), sum(s for _, s in done), time.perf_counter() - begin)


def _read_rows(files: list[_File], direct: bool, failures: dict[str, None]) -> Reads:
    """Reads whole files one after the other."""
    reads = size = 0
    begin = time.perf_counter()
    end = begin + SEQUENTIAL
    with mmap.mmap(-1, SEQUENTIAL_READ) as buffer:
        for file in files:
            try:
                with _opened(file, direct) as handle:
                    for offset in range(0, file.size, SEQUENTIAL_READ):
                        size += os.preadv(handle, [buffer], offset)
                        reads += 1
                        if size >= SEQUENTIAL_BYTES or time.perf_counter() > end:
                            return Reads(reads, size, time.perf_counter() - begin)
            except OSError as error:
                failures[f"{file.path}: {error.strerror}"] = None
    return Reads(reads, size, time.perf_counter() - begin)
