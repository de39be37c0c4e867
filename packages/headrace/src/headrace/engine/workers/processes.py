"""Worker processes: how they are started by each method, and how they end."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

from headrace.errors import ConfigError

# As long as torch waits for a worker that is in the middle of a sample.
LEAVING_SECONDS = 5.0


class _Process:
    """For processes that another one may have a copy of, by fork: there, nothing ends or waits for them."""

    _owner = 0
    pid: int | None

    @property
    def daemon(self) -> bool:
        """True if the process is ended together with this one."""
        current: Any = multiprocessing.current_process()
        own = self._owner in (0, os.getpid()) or current is self
        return bool(own and super().daemon)  # type: ignore[misc]

    @daemon.setter
    def daemon(self, value: bool) -> None:
        multiprocessing.process.BaseProcess.daemon.fset(self, value)  # type: ignore[attr-defined]

    def start(self) -> None:
        """Starts the process."""
        self._owner = os.getpid()
        super().start()  # type: ignore[misc]

    def join(self, timeout: float | None = None) -> None:
        """Waits for the end of the process."""
        if self._owner in (0, os.getpid()):
            super().join(timeout)  # type: ignore[misc]


class _Forked(_Process, multiprocessing.get_context("fork").Process):  # type: ignore[misc]
    pass


class _Spawned(_Process, multiprocessing.get_context("spawn").Process):  # type: ignore[misc]
    pass


class _Served(_Process, multiprocessing.get_context("forkserver").Process):  # type: ignore[misc]
    def start(self) -> None:
        try:
            super().start()
        except ChildProcessError as error:  # of multiprocessing, which waits for a server that is no child
            raise ConfigError(
                "Workers can't be started by 'forkserver' in this process, which was forked (os.fork) from"
                " one that had started the fork server. Pass multiprocessing_context='fork' or 'spawn' here."
            ) from error


PROCESSES: dict[str, Any] = {"fork": _Forked, "spawn": _Spawned, "forkserver": _Served}


def end_processes(processes: list[Any]) -> None:
    """Waits for processes that have been asked to end; ends those that don't."""
    for end in (None, "terminate", "kill"):
        deadline = time.monotonic() + LEAVING_SECONDS
        for process in processes:
            if end is not None:
                getattr(process, end)()
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        # Not closed: whoever has a process may still ask for its end. It closes its files itself.
        processes = [process for process in processes if process.exitcode is None]
        if not processes:
            return
