"""A process and its children, seen from outside: processors, storage, memory, several times a second."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from headrace.measure.gpus import gpus
from headrace.measure.machine import available_memory
from headrace.measure.processes import TreeLook, look
from headrace.measure.worker_sampling import PHASE_FILE

INTERVAL_SECONDS = 0.5
# Counting a process's own pages walks all its page tables, some 15 ms of a core: it takes no more than this
# share of the time. In between, what a process's resident memory gained is taken to be its own.
SHARE_OF_TIME = 0.005
SHM = Path("/dev/shm")


class Outside:
    """Watches from a thread, from when it is made until `stop`.

    Args:
        pid: of the process.
        folder: where it says in which phase it is.
    """

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid = pid
        self._gpus = bool(gpus()[0])
        self._phase = folder / PHASE_FILE
        self._rows: list[dict[str, Any]] = []
        self._began = time.perf_counter()
        self._uss: dict[int, tuple[int, int]] = {}
        self._count_at = 0.0
        self._before: tuple[float, float, int] | None = None
        self._allowed = available_memory()
        self._shm_free = self._shm_total = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-outside", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more is seen."""
        self._stopping.set()
        self._thread.join()

    def usage(self, began: float) -> list[dict[str, Any]]:
        """What was seen, with the fields of `headrace.doctor.records.Usage`.

        Args:
            began: the moment that times count from, by `time.perf_counter()`.
        """
        return [{**row, "time": row["time"] - began} for row in self._rows if row["time"] >= began]

    def memory(self) -> dict[str, int]:
        """Bytes: "allowed" when it began; "shm_total", and "shm_free" at the least."""
        return {"allowed": self._allowed, "shm_total": self._shm_total, "shm_free": self._shm_free}

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL_SECONDS):
            tree = look(self._pid)
            if not tree.processes:
                return
            self._note(tree)

    def _note(self, tree: TreeLook) -> None:
        cpu = sum(process.cpu_seconds for process in tree.processes)
        read = sum(process.read_bytes or 0 for process in tree.processes)
        own = self._own_memory(tree)
        self._note_shm()
        gpu, gpu_memory = (
            busy_gpu({process.pid for process in tree.processes}) if self._gpus else (None, None)
        )
        if self._before is not None:
            then, cpu_then, read_then = self._before
            seconds = tree.clock - then
            self._rows.append(
                {
                    "time": tree.clock,
                    "phase": self._phase_now(),
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
            if again or process.pid not in self._uss:
                self._uss[process.pid] = own_memory(process.pid), process.memory
        if again:
            ended = time.perf_counter()
            self._count_at = ended + (ended - began) / SHARE_OF_TIME
        own = {}
        for process in tree.processes:
            counted, resident = self._uss[process.pid]
            own[process.pid] = max(0, counted + process.memory - resident)
        return own

    def _note_shm(self) -> None:
        if SHM.is_dir():
            about = os.statvfs(SHM)
            free = about.f_bavail * about.f_frsize
            self._shm_free = min(self._shm_free or free, free)
            self._shm_total = about.f_blocks * about.f_frsize

    def _phase_now(self) -> str:
        try:
            return self._phase.read_text()
        except FileNotFoundError:
            return ""


def own_memory(pid: int) -> int:
    """Bytes that would be free without this process (USS); 0: it has ended, or isn't this user's."""
    try:
        return int(psutil.Process(pid).memory_full_info().uss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def busy_gpu(pids: set[int]) -> tuple[float | None, int | None]:
    """How busy the busiest of these processes' GPUs is, 0 to 1, and the bytes used on it; of all GPUs where
    NVML doesn't say whose they are, as in a container."""
    found, _ = gpus()
    theirs = [gpu for gpu in found if pids & set(gpu.pids)] or list(found)
    busiest = max(theirs, key=lambda gpu: gpu.busy, default=None)
    return (None, None) if busiest is None else (busiest.busy, busiest.memory_used)
