"""Who uses the cache. Each `Cache` is a client: a row in the index, and a lock on a file of its own, which
the kernel lets go when its process dies, however it dies. Whoever comes upon the row of a dead one takes back
what it had. All of this runs within transactions of the index."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from sqlite3 import Connection

from headrace.cache import files
from headrace.errors import CacheError, ConfigError

BOOT = Path("/proc/sys/kernel/random/boot_id")  # another one each time that the machine starts
BURIAL_SECONDS = 1.0
FORGOTTEN_AT_ONCE = 1000
CLOCK = "SELECT clock FROM clients WHERE id = ?"
ADVANCE = "UPDATE clients SET clock = max(clock, ?) WHERE id = ?"


class Clients:
    """The clients of the cache whose files are under `root`."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._buried = 0.0

    def join(self, connection: Connection, capacity: int) -> tuple[int, int]:
        """A new client's number, and a descriptor: as long as it is open, the client lives.

        Raises:
            ConfigError: another client lives that uses another capacity.
        """
        self.bury(connection)
        (present,) = connection.execute("SELECT capacity FROM space").fetchone()
        other = connection.execute("SELECT pid FROM clients WHERE gone = 0").fetchone()
        if other and present != capacity:
            raise ConfigError(
                f"capacity ({capacity:,}) must be {present:,} bytes, with which process {other[0]} uses the"
                f" cache in {os.path.dirname(self._root)} now. Name the same capacity, or another folder."
            )
        connection.execute("UPDATE space SET capacity = ?", [capacity])
        if not other:
            self._remove_strays(connection)
        number = int(connection.execute("INSERT INTO clients (pid) VALUES (?)", [os.getpid()]).lastrowid or 0)
        os.makedirs(os.path.dirname(self._path(number)), exist_ok=True, mode=0o700)
        lock = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise CacheError(
                f"The cache can't lock {self._path(number)} ({error.strerror}). Its folder must be on a local"
                " disk."
            ) from error
        return number, lock

    def _remove_strays(self, connection: Connection) -> None:
        """Files that the index doesn't know: a power failure can take its latest changes back, not those of
        the folders."""
        boot = BOOT.read_text() if BOOT.exists() else ""
        (before,) = connection.execute("SELECT boot FROM space").fetchone()
        if before and before != boot:
            for number in files.numbers_there(self._root):
                if not connection.execute("SELECT 1 FROM records WHERE id = ?", [number]).fetchone():
                    self.remove_file(number)
        connection.execute("UPDATE space SET boot = ?", [boot])

    def lives(self, number: int) -> bool:
        """Whether client `number` is open, in a process that lives."""
        try:
            lock = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def bury(self, connection: Connection) -> bool:
        """Take back what dead clients have in hand or are fetching; whether there was one."""
        self._buried = time.monotonic()
        clients = connection.execute("SELECT id FROM clients WHERE gone = 0").fetchall()
        dead = [number for (number,) in clients if not self.lives(number)]
        for number in dead:
            self.dismiss(connection, number)
        return bool(dead)

    def bury_at_times(self, connection: Connection) -> None:
        """`bury`, unless it was done a moment ago."""
        if time.monotonic() - self._buried > BURIAL_SECONDS:
            self.bury(connection)

    def dismiss(self, connection: Connection, number: int) -> None:
        """Unpin what client `number` has in hand and remove what it was fetching. `forget` does the rest."""
        for (record,) in connection.execute("SELECT id FROM records WHERE fetcher = ?", [number]).fetchall():
            self.remove_file(record)
        connection.execute("DELETE FROM records WHERE fetcher = ?", [number])
        connection.execute("UPDATE uses SET pins = 0 WHERE client = ? AND pins > 0", [number])
        connection.execute("UPDATE clients SET gone = 1 WHERE id = ?", [number])
        files.remove(self._path(number))

    def remove_file(self, record: int) -> None:
        """That of record `record`, where it is there."""
        files.remove(files.path_of(self._root, record))

    def _path(self, number: int) -> str:
        return f"{self._root}/clients/{number}"


def forget(connection: Connection) -> bool:
    """Forget some of what clients need that are gone; whether there was any. A few at a time: it can be
    millions, and nobody else gets at the index meanwhile."""
    gone = connection.execute("SELECT id FROM clients WHERE gone = 1 LIMIT 1").fetchone()
    if gone is None:
        return False
    if not _delete_uses(connection, gone[0], 1 << 62, FORGOTTEN_AT_ONCE):
        connection.execute("DELETE FROM clients WHERE id = ?", gone)
    return True


def forget_passed(connection: Connection, number: int, at_most: int) -> int:
    """Forget uses that client `number` named and has passed since: those of other ranks of its job, or of an
    epoch that was left. Returns how many."""
    (clock,) = connection.execute(CLOCK, [number]).fetchone()
    return _delete_uses(connection, number, clock, at_most)


def _delete_uses(connection: Connection, number: int, before: int, at_most: int) -> int:
    deleted = connection.execute(
        "DELETE FROM uses WHERE client = ?1 AND record IN (SELECT record FROM uses WHERE client = ?1"
        " AND pins = 0 AND position < ?2 ORDER BY position LIMIT ?3)",
        [number, before, at_most],
    )
    return deleted.rowcount
