"""Watches a process and its children from outside, every second: processors, storage, memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from headrace_doctor.machine import available_memory, shared_memory
from headrace_doctor.measure.processes import ProcessLook, family, own_memory
from headrace_doctor.measure.sampler import read_phase

INTERVAL_SECONDS = 1.0
# Counting a process's own pages walks all its page tables, some 15 ms of a core: only every so many looks.
LOOKS_BETWEEN_COUNTS = 3


class Outside:
    """Watches a process and its descendants from a thread, from when it is made until `stop`.

    Args:
        pid: number of the process.
        folder: of its samplers, with the file that names the phase.
        progress: called in the watching thread with the name of each phase.

    Attributes:
        share: processor seconds per second that watching takes.
        memory: bytes: "allowed" when it began; "shm_total", and "shm_free" at the least, 0 without /dev/shm.
    """

    def __init__(self, pid: int, folder: Path, progress: Callable[[str], None] = lambda _: None) -> None:
        self._root, self._folder = psutil.Process(pid), folder
        self._progress, self._phase = progress, ""
        self._rows: list[dict[str, Any]] = []
        self._own: dict[int, int] = {}  # bytes of each process's own
        self._before: tuple[float, float, int] | None = None
        self.memory = {"allowed": available_memory(), "shm_total": 0, "shm_free": 0}
        self.share = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-outside", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        self._thread.join()

    def usage(self, began: float) -> list[dict[str, Any]]:
        """Fields of `doctor.records.Usage`, oldest first; times count from `began`."""
        return [{**row, "time": row["time"] - began} for row in self._rows if row["time"] >= began]

    def _run(self) -> None:
        began, number = time.perf_counter(), 0
        while not self._stopping.wait(INTERVAL_SECONDS):
            processes = family(self._root)
            if not processes:
                return
            self._note(processes, count=number % LOOKS_BETWEEN_COUNTS == 0)
            self.share = time.thread_time() / (time.perf_counter() - began)
            number += 1

    def _note(self, processes: dict[int, ProcessLook], count: bool) -> None:
        clock, phase = time.perf_counter(), read_phase(self._folder)
        cpu = sum(process.cpu_seconds for process in processes.values())
        read = sum(process.read_bytes for process in processes.values())
        if phase not in ("", self._phase):
            self._phase = phase
            self._progress(phase)
        if count:
            self._own = {pid: own_memory(pid) for pid in processes}
        memory = sum(self._own.get(pid, 0) for pid in processes)
        if (space := shared_memory()) is not None:
            least = min(self.memory["shm_free"] or space.free, space.free)
            self.memory |= {"shm_total": space.total, "shm_free": least}
        if self._before is not None:
            then, cpu_then, read_then = self._before
            self._rows.append(
                {
                    "time": clock,
                    "phase": phase,
                    # A worker that has ended takes its count with it.
                    "cpu": max(0.0, cpu - cpu_then) / (clock - then),
                    "disk_read": max(0, read - read_then) / (clock - then),
                    "memory": memory,
                    "workers_memory": memory - self._own[self._root.pid],
                }
            )
        self._before = clock, cpu, read
