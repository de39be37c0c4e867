"""The cache as its callers see it."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet, finalize

from headrace.errors import CacheError, ConfigError, DamagedError
from headrace.sources.stores.cache import files
from headrace.sources.stores.cache.records import CacheStats, Claim, Record

# Records that a process remembers to have checked: at most 150 MB. Then it checks again.
MOST_CHECKED = 1 << 21


class Cache:
    """A cache of records on local disk. All processes of the node that name one folder share it; threads may
    share a Cache, and a forked child continues with one of its own.

    The cache fills up and then keeps what it has: a record is evicted only if no live process uses its
    dataset, and only to make room for others. A process uses a dataset from the first claim of one of its
    records until it closes the Cache or ends.

    Args:
        folder: on a local disk. Made if it is missing; files in it that the cache didn't write are left
            alone.
        capacity: bytes that the records may take on disk, in blocks of 4096.

    Raises:
        ConfigError: `capacity` is less than a block, or a live process uses the folder with another.
        CacheError: the folder can't be used.
    """

    def __init__(self, folder: Path | str, capacity: int) -> None:
        if capacity < files.BLOCK:
            raise ConfigError(f"capacity ({capacity:,}) must be {files.BLOCK:,} bytes or more.")
        self._folder = Path(folder).absolute()
        self._capacity = capacity
        self._closed = False
        self._checked: set[int] = set()
        self._reset()
        with _caches_lock:
            _caches.add(self)
        with self._locked():
            pass  # an unusable folder is an error now

    def _reset(self) -> None:
        """Starts as a new client, which holds nothing."""
        self._lock = threading.RLock()
        self._ledger: files.Ledger | None = None
        self._client = self._folder
        self._datasets: dict[str, str] = {}
        self._fetching: set[str] = set()
        self._descriptors: list[int] = []  # whose locks say that this client lives, and what it uses
        self._end = finalize(self, _leave, self._descriptors)
        self._end.atexit = False  # a thread may still use them; the kernel closes them
        self._counts = dict.fromkeys(("hits", "misses", "evictions", "damaged", "not_kept"), 0)

    def claim(self, records: Sequence[Record]) -> list[Claim]:
        """Finds what is there, and divides among the processes who fetches what isn't. Call it in order of
        use, with a batch's records or more at a time. What is "ready" has been checked: by its checksum the
        first time that this process sees it, by its size later.

        Raises:
            CacheError: the folder can't be used. On a full disk the answer is "full" instead.
        """
        with self._explained():
            paths = [self._path(record) for record in records]
            claims = [
                Claim("ready", path) if self._is_ready(path, record) else None
                for path, record in zip(paths, records, strict=True)
            ]
        missing = [i for i, claim in enumerate(claims) if claim is None]
        if missing:
            rooms = [files.room_of(records[i]) for i in missing]
            with self._locked() as ledger:
                self._make_room(ledger, sum(room for room in rooms if room <= self._capacity))
                try:
                    for i in missing:
                        claims[i] = self._decide(ledger, paths[i], records[i])
                except BaseException:
                    for i in missing:
                        if claims[i] == Claim("mine"):
                            self._drop_claim(ledger, paths[i], records[i])
                    raise
        answers = [claim for claim in claims if claim is not None]
        states = [claim.state for claim in answers]
        with self._lock:
            self._counts["hits"] += states.count("ready")
            self._counts["misses"] += states.count("mine") + states.count("full")
        return answers

    def add(self, records: Sequence[Record], data: Sequence[files.Bytes]) -> list[str | None]:
        """Ends claims that were "mine" with the records' bytes. Returns the path of each, or None if the disk
        is full: continue without keeping it.

        Raises:
            ConfigError: a record isn't claimed.
            DamagedError: bytes don't have their record's size or checksum. Nothing was added; `error.keys`
                says which to fetch again.
            CacheError: the folder can't be written.
        """
        places = [self._path(record) for record in records]
        for record, path in zip(records, places, strict=True):
            if path not in self._fetching:
                raise ConfigError(f"add() of a record that this Cache has no claim to fetch: {record.key}.")
        checksums = _checked(records, data)
        paths: list[str | None] = []
        for record, path, content, checksum in zip(records, places, data, checksums, strict=True):
            with self._explained():
                is_written = files.write(path, record, content, checksum)
            if is_written:
                self._fetching.discard(path)
                self._note_checked(path)
            else:
                self._counts["not_kept"] += 1
                self.give_up([record])
            paths.append(path if is_written else None)
        return paths

    def give_up(self, records: Sequence[Record]) -> None:
        """Ends claims that were "mine", of records that couldn't be fetched. Others are passed over."""
        paths = [self._path(record) for record in records]
        with self._locked() as ledger:
            for record, path in zip(records, paths, strict=True):
                if path in self._fetching:
                    self._drop_claim(ledger, path, record)

    def stats(self) -> CacheStats:
        """Returns what the cache holds now."""
        with self._locked() as ledger:
            return CacheStats(ledger.capacity, ledger.bytes, ledger.records, **self._counts)

    def close(self) -> None:
        """Ends the use of all datasets, and gives up what is being fetched. The kernel and the other
        processes do the same for a process that was killed."""
        with self._lock:
            self._closed = True
            self._datasets.clear()
            self._end()

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process: the same cache, another client.
        return type(self), (self._folder, self._capacity)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns errors of the system into CacheErrors."""
        try:
            yield
        except CacheError:  # an OSError, too
            raise
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            full = "The disk is full. " if error.errno in files.FULL else ""
            raise CacheError(
                f"{full}The cache in {self._folder} can't be used: {error.strerror}{where}. The folder must"
                " be on a local, writable disk: name another one (for a dataset by cache_dir=…)."
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[files.Ledger]:
        """Makes all other threads and processes wait; opens the cache at the first use."""
        with self._lock, self._explained():
            if self._closed:
                raise ConfigError(f"The cache in {self._folder} was closed. Make another Cache.")
            if self._ledger is None:
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                ledger = files.Ledger(self._folder)
                self._descriptors.append(ledger.descriptor)
                with ledger.locked():
                    self._join(ledger)
                self._ledger = ledger
            with self._ledger.locked():
                yield self._ledger

    def _join(self, ledger: files.Ledger) -> None:
        """Becomes a client; the first one counts what is there."""
        clients = self._folder / "clients"
        clients.mkdir(exist_ok=True)
        (self._folder / "datasets").mkdir(exist_ok=True)
        others = []
        for path in clients.iterdir():
            if files.is_held(str(path)):
                others.append(path.name)
            else:
                path.unlink()  # a claim that it had can be recognized without it
        if others and ledger.capacity != self._capacity:
            raise ConfigError(
                f"capacity ({self._capacity:,}) must be {ledger.capacity:,} bytes, with which process"
                f" {others[0].split('-')[0]} uses the cache in {self._folder} now. Name the same capacity, or"
                " another folder."
            )
        if not others:
            self._remove_first_version()
            self._count(ledger)
        self._client = clients / f"{os.getpid()}-{secrets.token_hex(8)}"
        self._client.touch(0o600, exist_ok=False)
        self._hold(self._client, fcntl.LOCK_EX)

    def _hold(self, path: Path, kind: int) -> None:
        """Locks a file or folder as long as this client lives."""
        descriptor = files.lock(str(path), kind)
        assert descriptor is not None, f"{path} is missing"
        self._descriptors.append(descriptor)

    def _remove_first_version(self) -> None:
        """Removes what Headrace 0.1 kept here, which nothing would count."""
        if (self._folder / "index.sqlite").exists():
            for old in self._folder.glob("headrace-????????"):
                shutil.rmtree(old, ignore_errors=True)
            for name in ("index.lock", "index.sqlite-wal", "index.sqlite-shm", "index.sqlite"):
                (self._folder / name).unlink(missing_ok=True)

    def _count(self, ledger: files.Ledger) -> None:
        """Counts what is there, removes what was being written, and what exceeds the capacity."""
        ledger.write(self._capacity, 0, 0)
        for dataset in self._folder.joinpath("datasets").iterdir():
            for path, room in files.records_in(str(dataset)):
                is_whole = os.path.exists(path) and ledger.bytes + room <= ledger.capacity
                files.remove(path, *(files.PARTIAL if is_whole else files.ALL))
                ledger.change(room * is_whole, int(is_whole))

    def _path(self, record: Record) -> str:
        """The record's file. From the first time on, this client uses the record's dataset, unless the disk
        has no room for its folder."""
        folder = self._datasets.get(record.dataset)
        if folder is None:
            with self._locked():
                place = self._folder / "datasets" / files.digest(record.dataset)
                try:
                    place.mkdir(exist_ok=True)
                except OSError as error:
                    if error.errno not in files.FULL:
                        raise
                    return files.path_of(str(place), record)
                self._hold(place, fcntl.LOCK_SH)
                os.utime(place)
                folder = self._datasets[record.dataset] = str(place)
        return files.path_of(folder, record)

    def _is_ready(self, path: str, record: Record) -> bool:
        try:
            is_ready = os.stat(path).st_size == files.stored_size(record)
        except FileNotFoundError:
            return False
        if is_ready and hash(path) not in self._checked:
            is_ready = files.is_whole(path, record)
            if is_ready:
                self._note_checked(path)
        return is_ready

    def _note_checked(self, path: str) -> None:
        if len(self._checked) >= MOST_CHECKED:
            self._checked.clear()
        self._checked.add(hash(path))

    def _decide(self, ledger: files.Ledger, path: str, record: Record) -> Claim:
        """Answers the claim of a record that wasn't there a moment ago; all others wait."""
        if record.dataset not in self._datasets:
            return Claim("full")
        claim = path + files.CLAIM
        is_counted = os.path.exists(claim)
        if is_counted and files.is_held(claim):
            return Claim("other")
        if os.path.exists(path):
            if self._is_ready(path, record):
                return Claim("ready", path)
            os.unlink(path)
            self._checked.discard(hash(path))
            self._counts["damaged"] += 1
            is_counted = True
        room = files.room_of(record)
        if not is_counted:
            if ledger.bytes + room > ledger.capacity:
                return Claim("full")
            ledger.change(room, 1)
        files.remove(path, *files.PARTIAL)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.link(self._client, claim)
        except OSError as error:
            ledger.change(-room, -1)
            if error.errno not in (*files.FULL, errno.EMLINK):
                raise
            return Claim("full")
        self._fetching.add(path)
        return Claim("mine")

    def _drop_claim(self, ledger: files.Ledger, path: str, record: Record) -> None:
        self._fetching.discard(path)
        files.remove(path, *files.PARTIAL)
        ledger.change(-files.room_of(record), -1)

    def _make_room(self, ledger: files.Ledger, needed: int) -> None:
        """Removes records of datasets that no live process uses, those unused the longest first."""
        if ledger.bytes + needed <= ledger.capacity:
            return
        datasets = self._folder.joinpath("datasets").iterdir()
        for dataset in sorted(datasets, key=lambda place: place.stat().st_mtime):
            descriptor = files.lock(str(dataset), fcntl.LOCK_EX | fcntl.LOCK_NB)
            if descriptor is None:
                continue
            try:
                for path, room in files.records_in(str(dataset)):
                    if ledger.bytes + needed <= ledger.capacity:
                        return
                    files.remove(path, *files.ALL)
                    ledger.change(-room, -1)
                    self._counts["evictions"] += 1
            finally:
                os.close(descriptor)


def _leave(descriptors: list[int]) -> None:
    """Ends a client. Waits for no lock: the garbage collector may call it in the middle of anything."""
    while descriptors:
        os.close(descriptors.pop())


def _checked(records: Sequence[Record], data: Sequence[files.Bytes]) -> list[int]:
    """The checksums of the data. Raises DamagedError."""
    checksums = [zlib.crc32(content) for content in data]
    damaged = []
    for record, content, checksum in zip(records, data, checksums, strict=True):
        size = memoryview(content).nbytes
        if size != record.size:
            damaged.append((record, f"{size:,} bytes instead of {record.size:,}"))
        elif record.checksum is not None and checksum != record.checksum:
            damaged.append((record, f"CRC-32 {checksum:08x} instead of {record.checksum:08x}"))
    if damaged:
        raise DamagedError(
            f"{len(damaged)} of {len(records)} records came damaged, as {damaged[0][0].key}: {damaged[0][1]}."
            " Fetch again; if that doesn't help, the source has changed or is damaged.",
            tuple(record.key for record, _ in damaged),
        )
    return checksums


_caches: WeakSet[Cache] = WeakSet()
_caches_lock = threading.Lock()  # held during a fork: until then no thread makes a cache, or forks, too
_forking: list[Cache] = []


def _before_fork() -> None:
    _caches_lock.acquire()
    _forking.extend(_caches)
    for cache in _forking:
        cache._lock.acquire()


def _after_in_parent() -> None:
    while _forking:
        _forking.pop()._lock.release()
    _caches_lock.release()


def _after_in_child() -> None:
    # The parent's descriptors keep its locks; the child's copies would keep them after the parent's end.
    while _forking:
        cache = _forking.pop()
        cache._end()
        cache._reset()
    _caches_lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
