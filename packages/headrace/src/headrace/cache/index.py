"""What the cache holds and who needs it, in an SQLite database that all processes of the node share.

``uses`` has a row for each record that a client needs again, as far as is known, or holds. Triggers keep the
sums that every claim needs: the bytes taken, and how many clients know of a use of a record.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from sqlite3 import Connection
from typing import Any
from weakref import WeakSet, finalize

from headrace.cache import files
from headrace.cache.claiming import Clients, eviction_candidates
from headrace.errors import CacheError, ConfigError

# How long a process waits for the index while others use it, and the first and the longest pause between two
# attempts, in seconds.
BUSY_SECONDS = 60.0
LOCK_PAUSES = 0.0001, 0.002
VERSION = 1
SCHEMA = (
    """CREATE TABLE space (
    token TEXT, boot TEXT, capacity INTEGER, bytes INTEGER, records INTEGER, ticks INTEGER
)""",
    """CREATE TABLE clients (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    pid INTEGER NOT NULL,
    clock INTEGER NOT NULL DEFAULT 0,       -- position that it has claimed up to
    gone INTEGER NOT NULL DEFAULT 0         -- closed or dead; its uses are being forgotten
)""",
    """CREATE TABLE records (
    id INTEGER PRIMARY KEY AUTOINCREMENT,   -- never used twice: names the file
    key BLOB NOT NULL UNIQUE,
    size INTEGER NOT NULL,
    room INTEGER NOT NULL,                  -- the size in whole blocks
    checksum INTEGER,
    fetcher INTEGER,                        -- client that is fetching it; NULL: it is there
    users INTEGER NOT NULL DEFAULT 0,       -- rows of uses
    touched INTEGER NOT NULL DEFAULT 0      -- tick at which the last of them went
)""",
    "CREATE INDEX idle ON records (touched) WHERE users = 0 AND fetcher IS NULL",
    "CREATE INDEX fetching ON records (fetcher) WHERE fetcher IS NOT NULL",
    """CREATE TABLE uses (
    record INTEGER NOT NULL,
    client INTEGER NOT NULL,
    position INTEGER NOT NULL,              -- of the next use
    pins INTEGER NOT NULL,                  -- times that the client holds it
    PRIMARY KEY (record, client)
) WITHOUT ROWID""",
    "CREATE INDEX by_position ON uses (client, position) WHERE pins = 0",
    "CREATE INDEX pinned ON uses (client) WHERE pins > 0",
    """CREATE TRIGGER record_came AFTER INSERT ON records BEGIN
    UPDATE space SET bytes = bytes + NEW.room, records = records + 1;
END""",
    """CREATE TRIGGER record_went AFTER DELETE ON records BEGIN
    UPDATE space SET bytes = bytes - OLD.room, records = records - 1;
    DELETE FROM uses WHERE record = OLD.id;
END""",
    """CREATE TRIGGER use_came AFTER INSERT ON uses BEGIN
    UPDATE records SET users = users + 1 WHERE id = NEW.record;
END""",
    """CREATE TRIGGER use_went AFTER DELETE ON uses BEGIN
    UPDATE records SET users = users - 1, touched = (SELECT ticks FROM space) WHERE id = OLD.record;
END""",
)


class DiskFullError(CacheError):
    """The index couldn't be written, as the disk is full. Nothing was changed."""


class DeletedError(CacheError):
    """The cache's folder was deleted while it was in use, and perhaps made again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"The cache's folder {folder} was deleted while it was in use. Start the process again, and"
            " delete the folder only while no process uses it."
        )


# A statement and the rows to run it with.
Change = tuple[str, list[tuple[Any, ...]]]
REMOVE = "DELETE FROM records WHERE id = ?"


class Member:
    """A client of the cache, and its connection to the index, which is made where it is missing; another
    client in a forked child.

    Args:
        folder: folder of the cache, on a local disk.
        capacity: bytes that the records of the cache may take together.
        forked: called in a forked child, which has nothing of what the parent claimed.

    Attributes:
        lock: lock that whoever changes what `forked` clears holds.
        number: number of the client, from the first `transaction` on; 0 before.
        clients: all clients of the cache, from the first `transaction` on.
        forked: as given.
    """

    def __init__(self, folder: Path, capacity: int, forked: Callable[[], None]) -> None:
        self._folder = folder
        self._path = folder / "index.sqlite"
        self._lock_path = folder / "index.lock"
        self._capacity = capacity
        self._closed = False
        self.forked = forked
        self.clients: Clients
        self._reset()
        _members.add(self)

    def _reset(self) -> None:
        self.lock = threading.RLock()
        self.number = 0
        self._root = ""
        self._connection: Connection | None = None
        self._turn = -1
        # What closes the connection, and the client's lock.
        self._disconnect: Callable[[], Any] = lambda: None
        self._leave: Callable[[], Any] | None = None
        self._undone: list[Change] = []

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Writes, all of them or none; no other process reads or writes meanwhile.

        Raises:
            DiskFullError, CacheError: nothing was changed.
        """
        with self.lock:
            if self._closed:
                raise ConfigError(f"The cache in {self._folder} was closed. Make another Cache.")
            with self._writing(self._opened()) as connection:
                for statement, rows in self._undone:
                    connection.executemany(statement, rows)
                yield connection
            self._undone.clear()

    def change(self, changes: list[Change]) -> None:
        """Changes that are made up for with the next transaction if the disk is full."""
        with self.lock:
            try:
                with self.transaction() as connection:
                    for statement, rows in changes:
                        connection.executemany(statement, rows)
            except DiskFullError:
                self._undone += changes

    def path(self, record: int) -> str:
        """Of the file of record `record`."""
        return files.path_of(self._root, record)

    def close(self) -> None:
        """Leave: what this client claimed is taken back."""
        with self.lock:
            if self._closed:
                return
            try:
                if self._leave is not None:
                    with suppress(DeletedError), self.transaction() as connection:
                        self.clients.release_client(connection, self.number)
            finally:
                self._closed = True
                self.disconnect()
                if self._leave is not None:
                    self._leave()

    def disconnect(self) -> None:
        """Close the connection; the next transaction opens another."""
        self._connection = None
        self._disconnect()

    def _opened(self) -> Connection:
        """Connected, and one of the clients."""
        if self._connection is None:
            connection, token = self._connect()
            root = str(self._folder / f"headrace-{token}")
            if self._leave is None:
                self._root = root
                self.clients = Clients(root)
                with self._writing(connection):
                    self.number, lock = self.clients.join(connection, self._capacity)
                    leave = finalize(self, os.close, lock)
                    self._shrink(connection)
                self._leave = leave
            elif root != self._root:
                raise DeletedError(self._folder)
            self._connection = connection
        return self._connection

    def _connect(self) -> tuple[Connection, str]:
        """A connection to the index, and its token."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._turn = os.open(self._lock_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CacheError(
                f"The cache can't make its folder {self._folder}, or write in it: {error.strerror}."
            ) from error
        with ExitStack() as stack:
            stack.callback(os.close, self._turn)
            with self._explaining(), self._alone():
                connection = sqlite3.connect(
                    self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
                stack.callback(connection.close)
                token = _begin(connection, self._path)
            self._disconnect = finalize(self, stack.pop_all().close)
        return connection, token

    @contextmanager
    def _writing(self, connection: Connection) -> Iterator[Connection]:
        with self._explaining(), self._alone():
            if not self._is_present():
                raise DeletedError(self._folder)
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # SQLite itself rolls back after some errors, such as that of a full disk.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _is_present(self) -> bool:
        """Whether the folder still has the files that were opened."""
        try:
            return os.path.samestat(os.fstat(self._turn), os.stat(self._lock_path))
        except FileNotFoundError:
            return False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process of the node at a time. SQLite has locks of its own, but a process that finds them taken
        sleeps for up to 0.1 s before it tries again, which costs a third of the throughput of 8 processes.

        Raises:
            CacheError: another process has held the lock for `BUSY_SECONDS`.
        """
        deadline, pause = time.monotonic() + BUSY_SECONDS, LOCK_PAUSES[0]
        while True:
            try:
                fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise self._locked() from None
            time.sleep(pause)
            pause = min(2 * pause, LOCK_PAUSES[1])
        try:
            yield
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turns SQLite's errors into CacheErrors that say what to do."""
        try:
            yield
        except sqlite3.Error as error:
            message = str(error)
            if "disk is full" in message or ("disk I/O" in message and self._is_disk_full()):
                raise DiskFullError(
                    f"The disk is full: the cache's index {self._path} can't be written ({message})."
                ) from error
            if "locked" in message:
                raise self._locked() from error
            raise CacheError(
                f"The cache's index {self._path} can't be used ({message}). The folder must be on a local,"
                " writable disk. If the index is damaged, stop the processes that use it and delete the"
                " folder: it holds nothing but copies."
            ) from error

    def _locked(self) -> CacheError:
        return CacheError(
            f"The cache's index {self._path} has been locked for {BUSY_SECONDS:g} s by another process."
            " Is one of those that use it stopped?"
        )

    def _is_disk_full(self) -> bool:
        state = os.statvfs(self._folder)
        return state.f_bavail * state.f_frsize < 1 << 20

    def _shrink(self, connection: Connection) -> None:
        """To the capacity, which may have been more the last time."""
        (excess,) = connection.execute("SELECT bytes - capacity FROM space").fetchone()
        if excess > 0:
            for candidate in eviction_candidates(connection, 64):
                self.clients.remove_file(candidate.record)
                connection.execute(REMOVE, [candidate.record])
                excess -= candidate.room
                if excess <= 0:
                    break


def _begin(connection: Connection, path: Path) -> str:
    """The token of the index in the file `path`, once it is as it should be."""
    run = connection.execute
    # Without waiting for the disk at each commit: after a power failure the latest may be missing,
    # but the index is sound, and files are checked before they are used.
    run("PRAGMA journal_mode = WAL")
    run("PRAGMA synchronous = NORMAL")
    run("PRAGMA cache_size = -16384")
    (version,) = run("PRAGMA user_version").fetchone()
    if version == 0:
        run("BEGIN IMMEDIATE")
        for statement in SCHEMA:
            run(statement)
        # Its name distinguishes the folder of files from that of an index that was lost.
        run("INSERT INTO space VALUES (?, '', 0, 0, 0, 0)", [secrets.token_hex(4)])
        run(f"PRAGMA user_version = {VERSION}")
        run("COMMIT")
    elif version != VERSION:
        raise CacheError(
            f"The cache's index {path} has version {version}; this Headrace knows {VERSION}."
            " Name another folder, or delete this one: it holds nothing but copies."
        )
    (token,) = run("SELECT token FROM space").fetchone()
    return str(token)


# SQLite forbids to carry a connection over a fork: the child would take the parent's locks for its own. Each
# member closes its own before one, and opens another when it is used again.
_members: WeakSet[Member] = WeakSet()
_forking: list[Member] = []


def _before_fork() -> None:
    members = list(_members)
    for member in members:
        member.lock.acquire()
        member.disconnect()
    _forking[:] = members  # once no other thread is forking


def _after_in_parent() -> None:
    members = _forking[:]
    _forking.clear()
    for member in members:
        member.lock.release()


def _after_in_child() -> None:
    for member in _forking:
        if member._leave is not None:
            member._leave()  # the child's copy of the descriptor; the parent's holds the lock on
        member._reset()
        member.forked()
    _forking.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
