"""Lets `headrace top` look at a running job from outside; see "Watching a running job" in docs/stats.md.

A job that iterates over a `headrace.DataLoader` listens on a Unix socket in Linux's abstract namespace, and
one daemon thread answers each connection with one line of JSON: what its loaders have counted. The thread
sleeps in accept() until somebody asks, and the kernel frees the name with the process. Both sides ask the
kernel who the other is (SO_PEERCRED), as such a socket has no file mode. Nothing is ever read from a
connection, so that nothing can be changed through it.

A forked child closes what it inherited, and listens again once it iterates itself. Loaders are kept by weak
references. Whatever goes wrong (no such sockets here, no thread to be had) is logged at the level DEBUG, and
training continues. HEADRACE_TOP=0 in the environment switches all of it off.

The other end, `jobs` and `Job.ask`, finds which jobs answer, and what they say.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from headrace.errors import ConfigError

log = logging.getLogger("headrace")
T = TypeVar("T")
Json = dict[str, Any]
SWITCH = "HEADRACE_TOP"
FORMAT = 1  # of what is answered; another number if a name or a meaning changes
PAUSE = 0.1  # between connections; top asks once a second
TIMEOUT = 1.0  # for one answer, which fits in the socket's buffer
PEER = struct.Struct("3i")  # (pid, uid, gid) of a socket's other end
SOCKETS = Path("/proc/net/unix")
# A job whose threads hold the interpreter answers late; one that was stopped, not at all.
PATIENCE = 3.0
MOST_BYTES = 4_000_000  # an answer is a few kilobytes
_numbers = itertools.count(1)
_lock = threading.Lock()
# By the loader's id(): (its number, itself, what gives its figures).
_loaders: dict[int, tuple[int, weakref.ref[Any], Callable[[Any], Json]]] = {}


def address(uid: int) -> str:
    """The beginning of the names of the sockets of a user's jobs. The rest distinguishes the jobs: a process
    number alone wouldn't, if containers share the host's network."""
    return f"\0headrace/{uid}/"


def publish(loader: T, figures: Callable[[T], Json]) -> None:
    """Makes `figures(loader)` part of what this process answers, as long as the loader lives. It is called in
    another thread, while somebody looks, and gives a dict of JSON types.

    Called for every iterator: the first call in a process begins to listen.
    """
    place = id(loader)
    known = _loaders.get(place)
    if known is not None and known[1]() is loader:
        return
    _loaders[place] = (next(_numbers), weakref.ref(loader, partial(_forget, place)), figures)
    with _lock:  # `cache` alone would let two threads begin to listen
        _listener()


def _forget(place: int, dead: weakref.ref[Any]) -> None:
    known = _loaders.get(place)
    if known is not None and known[1] is dead:  # or else another loader lies there by now
        del _loaders[place]


@cache
def _listener() -> _Listener | None:
    """The listener of this process, started by the first call, or None if there is none."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        return _Listener()
    except (OSError, RuntimeError) as error:
        log.debug("headrace top won't see this process: %s", error)
        return None


class _Listener:
    """A socket, and a thread that answers on it. Raises OSError or RuntimeError if either can't be had."""

    def __init__(self) -> None:
        self._answering: socket.socket | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(f"{address(os.geteuid())}{os.getpid()}-{os.urandom(8).hex()}")
            self._socket.listen()
            threading.Thread(target=self._serve, name="headrace-top", daemon=True).start()
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Closes what a forked child has inherited."""
        self._socket.close()
        if self._answering is not None:
            self._answering.close()

    def _serve(self) -> None:
        while True:
            try:
                self._answering, _ = self._socket.accept()
                with self._answering:
                    _answer(self._answering)
            except Exception:  # a client that went away, or figures in the middle of a change: it asks again
                log.debug("headrace top was not answered", exc_info=True)
            time.sleep(PAUSE)


def _answer(connection: socket.socket) -> None:
    uid = peer(connection)[1]
    if uid != os.geteuid():
        log.debug("headrace top: user %d is not answered", uid)
        return
    connection.settimeout(TIMEOUT)
    connection.sendall(json.dumps(_snapshot()).encode() + b"\n")


def _snapshot() -> Json:
    environment = {name.lower(): os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    entries = []
    for number, reference, figures in list(_loaders.values()):
        loader = reference()
        if loader is not None:
            entries.append({"number": number, **figures(loader)})
    return {"format": FORMAT, "clock": time.perf_counter(), **environment, "loaders": entries}


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other end, as the kernel says; 0 as pid if it can't be seen from here."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    pid, uid, _ = PEER.unpack(credentials)
    return pid, uid


def _renew() -> None:
    # In a forked child, where no thread serves: its parent's loaders, sockets and lock aren't its own.
    global _lock
    _lock = threading.Lock()
    inherited = _listener() if _listener.cache_info().currsize else None
    if inherited is not None:
        inherited.close()
    _listener.cache_clear()
    _loaders.clear()


os.register_at_fork(after_in_child=_renew)


class Job:
    """A process of this user's that can be asked.

    Attributes:
        pid: as it is seen from here.
        name: of its socket.
    """

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self.name = name

    def ask(self) -> Json | None:
        """Returns what its loaders have counted, in the format of `headrace.export.figures`, or None if it is
        gone or doesn't answer.

        Raises:
            ConfigError: another version of Headrace answers.
        """
        try:
            with _connected(self.name) as connection:
                if peer(connection)[1] != os.geteuid():
                    return None
                with connection.makefile("rb") as answer:
                    line = answer.readline(MOST_BYTES)
        except OSError:
            return None
        if not line.endswith(b"\n"):
            return None
        content: Json = json.loads(line)
        if content.get("format") != FORMAT:
            raise ConfigError(
                f"process {self.pid} runs another version of Headrace, whose figures this one doesn't know."
                " Use the headrace command of its own environment."
            )
        return content


def jobs(known: Mapping[str, Job] = MappingProxyType({})) -> list[Job]:
    """This user's processes that can be asked now, by their number. One that has ended isn't among them.

    Args:
        known: found earlier, by name: they need not be looked at again.
    """
    own = address(os.geteuid()).replace("\0", "@")
    fields = [line.split() for line in SOCKETS.read_text().splitlines()]
    # Connections that were accepted bear the name of the socket that listens.
    names = {field[-1].replace("@", "\0", 1) for field in fields if field and field[-1].startswith(own)}
    current = [known[name] for name in names & known.keys()]
    for name in names - known.keys():
        try:
            with _connected(name) as connection:
                pid, uid = peer(connection)
        except OSError:
            continue  # it has ended just now
        if uid == os.geteuid() and pid:
            current.append(Job(pid, name))
    return sorted(current, key=lambda job: job.pid)


def _connected(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(name)
    except OSError:
        connection.close()
        raise
    return connection
