"""A process and its children, seen from outside: processors, storage, memory, several times a second."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from headrace.measure.machine import available_memory
from headrace.measure.worker_sampling import PHASE_FILE

INTERVAL_SECONDS = 0.5
# Counting a process's own pages walks its mappings: seldomer than the rest.
MEMORY_EVERY = 4
SHM = Path("/dev/shm")


class Outside:
    """Watches from a thread, from when it is made until `stop`.

    Args:
        pid: of the process.
        folder: where it says in which phase it is.
    """

    def __init__(self, pid: int, folder: Path) -> None:
        self._process = psutil.Process(pid)
        self._phase = folder / PHASE_FILE
        self._rows: list[dict[str, Any]] = []
        self._began = time.perf_counter()
        self._known: dict[int, psutil.Process] = {}
        self._uss: dict[int, int] = {}
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
        number = 0
        while not self._stopping.wait(INTERVAL_SECONDS):
            try:
                self._look(with_memory=number % MEMORY_EVERY == 0)
            except psutil.NoSuchProcess:
                return
            number += 1

    def _look(self, *, with_memory: bool) -> None:
        now, cpu, read = time.perf_counter(), 0.0, 0
        alive = [self._process, *self._process.children(recursive=True)]
        self._known = {process.pid: self._known.get(process.pid, process) for process in alive}
        for pid, process in self._known.items():
            try:
                times = process.cpu_times()
                cpu += times.user + times.system
                read += process.io_counters().read_bytes
                if with_memory or pid not in self._uss:
                    self._uss[pid] = process.memory_full_info().uss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                self._uss.pop(pid, None)
        self._note_shm()
        if self._before is not None:
            then, cpu_then, read_then = self._before
            seconds = now - then
            own = self._uss.get(self._process.pid, 0)
            whole = sum(self._uss.get(pid, 0) for pid in self._known)
            self._rows.append(
                {
                    "time": now,
                    "phase": self._phase_now(),
                    # A worker that has ended takes its count with it.
                    "cpu": max(0.0, cpu - cpu_then) / seconds,
                    "disk_read": max(0, read - read_then) / seconds,
                    "memory": whole,
                    "workers_memory": whole - own,
                    "gpu": None,
                    "gpu_memory": None,
                }
            )
        self._before = now, cpu, read

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
