"""A process's part in the cache: its connection to the index, and its place among the clients."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Any
from weakref import WeakSet, finalize

from headrace.cache import files
from headrace.cache.clients import Clients
from headrace.cache.eviction import victims
from headrace.cache.index import DiskFullError, Index
from headrace.errors import CacheError, ConfigError

# A statement and the rows to run it with.
Change = tuple[str, list[tuple[Any, ...]]]
REMOVE = "DELETE FROM records WHERE id = ?"


class Member:
    """A client of the cache in `folder`, bounded at `capacity` bytes; another one in a forked child.

    Attributes:
        lock: whoever changes what `forked` clears holds it.
        number: of the client, from the first `transaction` on.
        clients: all of them, from the first `transaction` on.
        forked: called in a forked child, which has nothing of what the parent claimed.
    """

    def __init__(self, folder: Path, capacity: int, forked: Callable[[], None]) -> None:
        self._folder = folder
        self._capacity = capacity
        self._closed = False
        self.forked = forked
        self.clients: Clients
        self._begin_anew()
        _members.add(self)

    def _begin_anew(self) -> None:
        self.lock = threading.RLock()
        self.number = 0
        self._index: Index | None = None
        # What closes the connection, and the client's lock.
        self._disconnect: Callable[[], Any] = _nothing
        self._leave: Callable[[], Any] | None = None
        self._undone: list[Change] = []

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """All or nothing; see `Index.transaction`."""
        with self.lock:
            if self._closed:
                raise ConfigError(f"The cache in {self._folder} was closed. Make another Cache.")
            with self._opened().transaction() as connection:
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
                    with self.transaction() as connection:
                        self.clients.dismiss(connection, self.number)
            finally:
                self._closed = True
                self.disconnect()
                if self._leave is not None:
                    self._leave()

    def disconnect(self) -> None:
        """Close the connection; the next transaction opens another."""
        self._index = None
        self._disconnect()

    def _opened(self) -> Index:
        """Connected, and one of the clients."""
        if self._index is None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise CacheError(
                    f"The cache can't make its folder {self._folder}: {error.strerror}."
                ) from error
            index = Index(self._folder)
            self._disconnect = finalize(self, index.close)
            if self._leave is None:
                self._root = index.root
                self.clients = Clients(index.root)
                with index.transaction() as connection:
                    self.number, lock = self.clients.join(connection, self._capacity)
                    leave = finalize(self, os.close, lock)
                    self._shrink(connection)
                self._leave = leave
            self._index = index
        return self._index

    def _shrink(self, connection: Connection) -> None:
        """To the capacity, which may have been more the last time."""
        (excess,) = connection.execute("SELECT bytes - capacity FROM space").fetchone()
        if excess > 0:
            for victim in victims(connection, 64):
                self.clients.remove_file(victim.record)
                connection.execute(REMOVE, [victim.record])
                excess -= victim.room
                if excess <= 0:
                    break


def _nothing() -> None:
    """Nothing to close."""


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
        member._begin_anew()
        member.forked()
    _forking.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
