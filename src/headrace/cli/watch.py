"""Looks at a job again and again, for `headrace top`."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable

import psutil

from headrace.cli.frames import Frame, Look, frame
from headrace.export.watching import Job, jobs
from headrace.measure.gpus import gpus
from headrace.measure.processes import look

# "Now" is the mean over so many seconds; the line of stalls goes back a minute.
NOW_SECONDS = 5.0
LINE_SECONDS = 60.0


class Watch:
    """One job: a process and all its descendants, of whom any may have loaders.

    Args:
        pid: of the process.
        interval: between looks, in seconds.

    Attributes:
        stalls: between looks, of the loader that waited most; oldest first, None where there was no step.
    """

    def __init__(self, pid: int, interval: float) -> None:
        self._pid = pid
        self._started: float | None = None
        self._looks: deque[Look] = deque(maxlen=1 + max(1, round(NOW_SECONDS / interval)))
        self._jobs: dict[str, Job] = {}
        self.stalls: deque[float | None] = deque(maxlen=max(1, round(LINE_SECONDS / interval)))

    def look(self) -> bool:
        """Looks; False: the job has ended."""
        tree = look(self._pid)
        if not tree.processes:
            return False
        started = tree.processes[0].started
        if self._started not in (None, started):
            return False  # another process has its number now
        self._started = started
        self._jobs = {job.name: job for job in jobs(self._jobs)}
        pids = {one.pid for one in tree.processes}
        said = {job.pid: job.ask() for job in self._jobs.values() if job.pid in pids}
        known = {pid: answer for pid, answer in said.items() if answer is not None}
        cards, why = gpus()
        used = tuple(card for card in cards if pids & set(card.pids))
        silent = tuple(pid for pid, answer in said.items() if answer is None and psutil.pid_exists(pid))
        self._looks.append(Look(tree, known, silent, used or cards, why))
        if len(self._looks) > 1:
            slowest = frame(self._looks[-2], self._looks[-1], time.time()).slowest
            running = [] if slowest is None else [one.stall for one in slowest.loaders if one.active]
            self.stalls.append(max((one for one in running if one is not None), default=None))
        return True

    def frame(self) -> Frame:
        """Of the last seconds."""
        return frame(self._looks[0], self._looks[-1], time.time())


def roots(found: Iterable[Job]) -> dict[int, list[int]]:
    """The numbers of jobs, each with those of its processes that can be asked: ranks that one launcher has
    started are one job, and a process's descendants are part of it."""
    pids = {job.pid: job for job in found}
    parents = {pid: _ancestors(pid) for pid in pids}
    own = [pid for pid in pids if not pids.keys() & set(parents[pid])]
    launchers = {}
    for pid in own:
        answer = pids[pid].ask()
        if answer is not None and answer["world_size"] not in (None, "1") and parents[pid]:
            launchers[pid] = parents[pid][0]
    shared = list(launchers.values())
    jobs_of: dict[int, list[int]] = {}
    for pid in own:
        launcher = launchers.get(pid)
        root = launcher if launcher is not None and shared.count(launcher) > 1 else pid
        jobs_of.setdefault(root, []).append(pid)
    return jobs_of


def _ancestors(pid: int) -> list[int]:
    """Nearest first."""
    try:
        return [one.pid for one in psutil.Process(pid).parents()]
    except psutil.NoSuchProcess:
        return []


def owner(pid: int) -> int | None:
    """The user that a process runs as; None: there is no such process."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
