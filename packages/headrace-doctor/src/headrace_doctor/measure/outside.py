"""Watches a process and its children from outside, every second: processors, storage, memory, GPUs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace_doctor.machine import available_memory, shared_memory
from headrace_doctor.measure.nvml import gpus
from headrace_doctor.measure.processes import TreeLook, look, own_memory
from headrace_doctor.measure.sampler import read_phase

INTERVAL_SECONDS = 1.0
# Counting a process's own pages walks all its page tables, some 15 ms of a core: it takes no more than this
# share of the time. In between, what a process's resident memory gained is taken to be its own.
SHARE_OF_TIME = 0.0025


class Outside:
    """Watches a process and its descendants from a thread, from when it is made until `stop`.

    Args:
        pid: number of the process.
        folder: of its samplers, which tells the phase.
        progress: called in the watching thread with the name of each phase that is seen, but for "".

    Attributes:
        share: processor seconds per second that watching takes.
        memory: bytes: "allowed" when it began; "shm_total", and "shm_free" at the least, 0: there is no
            /dev/shm.
    """

    def __init__(self, pid: int, folder: Path, progress: Callable[[str], None] = lambda _: None) -> None:
        self._pid, self._folder = pid, folder
        self._progress, self._phase = progress, ""
        self._gpus = bool(gpus())
        self._rows: list[dict[str, Any]] = []
        self._uss: dict[int, tuple[int, int]] = {}
        self._count_at = 0.0
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
        """Fields of `doctor.records.Usage`, oldest first.

        Args:
            began: the moment that times count from, by `time.perf_counter()`.
        """
        return [{**row, "time": row["time"] - began} for row in self._rows if row["time"] >= began]

    def _run(self) -> None:
        began = time.perf_counter()
        while not self._stopping.wait(INTERVAL_SECONDS):
            tree = look(self._pid)
            if not tree.processes:
                return
            self._note(tree)
            self.share = time.thread_time() / (time.perf_counter() - began)

    def _note(self, tree: TreeLook) -> None:
        cpu = sum(process.cpu_seconds for process in tree.processes)
        read = sum(process.read_bytes or 0 for process in tree.processes)
        phase = read_phase(self._folder)
        if phase not in ("", self._phase):
            self._phase = phase
            self._progress(phase)
        own = self._own_memory(tree)
        if (space := shared_memory()) is not None:
            least = min(self.memory["shm_free"] or space.free, space.free)
            self.memory |= {"shm_total": space.total, "shm_free": least}
        pids = {process.pid for process in tree.processes}
        gpu, gpu_memory = busiest_gpu(pids) if self._gpus else (None, None)
        if self._before is not None:
            then, cpu_then, read_then = self._before
            seconds = tree.clock - then
            self._rows.append(
                {
                    "time": tree.clock,
                    "phase": phase,
                    # A worker that has ended takes its count with it.
                    "cpu": max(0.0, cpu - cpu_then) / seconds,
                    "disk_read": max(0, read - read_then) / seconds,
                    "memory": sum(own.values()),
                    "workers_memory": sum(own.values()) - own[self._pid],
                    "gpu": gpu,
                    "gpu_memory": gpu_memory,
                }
            )
        self._before = tree.clock, cpu, read

    def _own_memory(self, tree: TreeLook) -> dict[int, int]:
        """Bytes of each process's own, by PID."""
        began = time.perf_counter()
        again = began >= self._count_at
        for process in tree.processes:
            if again:
                self._uss[process.pid] = own_memory(process.pid), process.memory
            elif process.pid not in self._uss:  # what it was forked with isn't its own
                self._uss[process.pid] = 0, process.memory
        if again:
            ended = time.perf_counter()
            self._count_at = ended + (ended - began) / SHARE_OF_TIME
        own = {}
        for process in tree.processes:
            counted, resident = self._uss[process.pid]
            own[process.pid] = max(0, counted + process.memory - resident)
        return own


def busiest_gpu(pids: set[int]) -> tuple[float | None, int | None]:
    """How busy the busiest of these processes' GPUs is, 0 to 1, and the bytes used on it; of all GPUs where
    NVML doesn't say whose they are, as in a container."""
    found = gpus()
    theirs = [gpu for gpu in found if pids & set(gpu.pids)] or list(found)
    busiest = max(theirs, key=lambda gpu: gpu.busy, default=None)
    return (None, None) if busiest is None else (busiest.busy, busiest.memory_used)
