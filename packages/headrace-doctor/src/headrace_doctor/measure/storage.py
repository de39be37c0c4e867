"""Measures how fast the user's files can be read from their storage, bypassing the page cache.

Nothing is written: existing files are read, for about a second per path.
"""

from __future__ import annotations

import itertools
import mmap
import os
import random
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

from headrace_doctor.measure.images import walk

# Offsets and lengths of direct reads are multiples of the device's block, at most this on today's devices.
BLOCK = 4096
# An image of ImageNet has 115 kB on average (147.9 GB in 1,281,167 files).
RANDOM_READ = 128 << 10
# As many as Headrace keeps in flight once reads wait, and as 32 workers of torch's DataLoader do.
IN_FLIGHT = 32
# Seconds for each part, together well under two.
FIND, RANDOM, PARALLEL = 0.4, 0.4, 0.5
MOST_FILES = 50_000
MOST_PLACES = 8192
Place = Literal["local", "memory", "network", "host", "fuse", "layers"]
# Kinds of file system by where reads go; what isn't named is local. "host": a folder of the machine that runs
# this one (virtual machine, WSL, Docker Desktop), by way of a protocol as over a network.
PLACES: dict[str, Place] = {
    **dict.fromkeys(("tmpfs", "ramfs"), "memory"),
    **dict.fromkeys(("overlay", "aufs"), "layers"),
    **dict.fromkeys(("9p", "virtiofs", "vboxsf", "prl_fs", "fuse.vmhgfs-fuse"), "host"),
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "glusterfs"), "network"),
    **dict.fromkeys(("ceph", "lustre", "beegfs", "gpfs", "wekafs", "pvfs2"), "network"),
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
    """

    point: Path
    kind: str
    place: Place
    source: str


@dataclass(frozen=True)
class Reads:
    """The time that reading took.

    Attributes:
        reads: number of reads.
        bytes: that they returned.
        seconds: of wall time, opening the files included.
    """

    reads: int
    bytes: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        """The rate of all threads together."""
        return self.bytes / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class Rates:
    """The speed at which the files were read.

    Attributes:
        direct: whether O_DIRECT bypassed the page cache; otherwise the kernel was asked to drop the files'
            pages first (posix_fadvise), which is only a request.
        random: of 128 KiB at random places, whole files if they are smaller, one read at a time.
        parallel: the same with 32 reads in flight.
        failures: files that couldn't be read, each with the system's reason.
    """

    direct: bool
    random: Reads
    parallel: Reads
    failures: tuple[str, ...]


@dataclass(frozen=True)
class Storage:
    """The storage of a folder or file, and its rates.

    Attributes:
        path: as given by the user.
        mount: the file system of the files that were read, or None if unknown.
        files: number of files found; those of less than 4 KiB don't count, unless `path` is one.
        bytes: their sum.
        complete: whether these are all: the search ended before its limits of time and number.
        rates: None if there are no files.
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


def mount_of(path: Path) -> Mount | None:
    """The file system that holds `path`, or None if the system doesn't say."""
    path = path.resolve()
    partitions = psutil.disk_partitions(all=True)
    # Of mounts on one point the last is on top of the others.
    above = [one for one in partitions if path.is_relative_to(one.mountpoint)]
    best = max(enumerate(above), key=lambda one: (len(Path(one[1].mountpoint).parts), one[0]), default=None)
    if best is None:
        return None
    _, partition = best
    fuse = partition.fstype.startswith("fuse.") and partition.fstype not in LOCAL_FUSE
    return Mount(
        point=Path(partition.mountpoint),
        kind=partition.fstype,
        place=PLACES.get(partition.fstype, "fuse" if fuse else "local"),
        source=partition.device,
    )


def measure_storage(path: Path) -> Storage:
    """Reads files at or below `path`, which must exist, for about one second.

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
    # One pass over the places, not two: what lies below (a server, a hypervisor) has a cache of its own.
    endless = itertools.cycle(places)
    alone = _read_places(endless, direct, 1, RANDOM, failures)
    parallel = _read_places(endless, direct, IN_FLIGHT, PARALLEL, failures)
    return replace(found, rates=Rates(direct, alone, parallel, tuple(failures)))


def _find(path: Path) -> tuple[list[_File], bool]:
    """Files at or below `path`, and whether these are all."""
    if path.is_file():
        return [_File(str(path), path.stat().st_size)], True
    os.scandir(path).close()  # raises if it can't be listed
    end = time.perf_counter() + FIND
    files: list[_File] = []
    for folder, names in walk(str(path), []):
        if time.perf_counter() > end:
            return files, False
        for name in names:
            if time.perf_counter() > end or len(files) >= MOST_FILES:
                return files, False
            file = os.path.join(folder, name)
            with suppress(OSError):  # a broken link, or deleted meanwhile
                status = os.stat(file)
                if stat.S_ISREG(status.st_mode) and status.st_size >= BLOCK:
                    files.append(_File(file, status.st_size))
    return files, True


def _places(files: list[_File], rng: random.Random) -> list[tuple[_File, int]]:
    """(file, offset) of random reads in random order, each place once if there are few."""
    counts = [max(1, file.size // RANDOM_READ) for file in files]
    if sum(counts) <= MOST_PLACES:
        places = [(f, i * RANDOM_READ) for f, n in zip(files, counts, strict=True) for i in range(n)]
        rng.shuffle(places)
        return places
    chosen = rng.choices(range(len(files)), counts, k=MOST_PLACES)
    return [(files[i], rng.randrange(counts[i]) * RANDOM_READ) for i in chosen]


def _is_direct(file: _File) -> bool:
    """Returns whether the file system takes reads by O_DIRECT."""
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
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
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
            for file, offset in places:
                try:
                    with _opened(file, direct) as handle:
                        size += os.preadv(handle, [buffer], offset)
                        reads += 1
                except OSError as error:
                    failures[f"{file.path}: {error.strerror}"] = None
                if time.perf_counter() > end:  # only here: a busy machine may start a thread too late
                    break
        return reads, size

    with ThreadPoolExecutor(threads) as pool:
        done = [future.result() for future in [pool.submit(read) for _ in range(threads)]]
    return Reads(sum(r for r, _ in done), sum(s for _, s in done), time.perf_counter() - begin)
