"""Examines a training script, or a loader and a step: measured by `measure`, judged by `doctor`.

Run as a module, it is the child process in which the script runs: ``python -m headrace.examine FOLDER``, with
what is to be done in FOLDER/job.json; see `Job`.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from headrace.doctor.diagnosis import diagnose as judge
from headrace.doctor.records import Diagnosis
from headrace.errors import ConfigError
from headrace.loader.dataloader import DataLoader
from headrace.measure.examination import Enough, Examination, Goal
from headrace.measure.machine import usable_cores
from headrace.measure.observed import EXAMINED, Observation
from headrace.measure.outside import Outside
from headrace.measure.sampler import Sampler, read_counts
from headrace.measure.settings import with_settings
from headrace.measure.subject import where_from
from headrace.measure.without import without
from headrace.measure.worker_sampling import (
    PHASE_FILE,
    announce_phase,
    install_in_workers,
    uninstall_in_workers,
)

JOB = "job.json"


@dataclass(frozen=True)
class Job:
    """What the child process is to do.

    Attributes:
        command: the script, or the module, and its arguments.
        module: it is a module.
        steps: of the actual phase; None: as many as take a few seconds.
        settings: to be used in the script's own place; see `headrace.measure.settings`.
        subject: the place of the loader that they are for; "": of any.
    """

    command: list[str]
    module: bool = False
    steps: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    subject: str = ""

    def save(self, folder: Path) -> None:
        """Writes it there."""
        (folder / JOB).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Job:
        """That of the folder."""
        return cls(**json.loads((folder / JOB).read_text()))


class Looks:
    """Stack samplers, here and in the workers.

    Args:
        folder: their files go there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        announce_phase(folder, "")
        install_in_workers(folder)
        self._sampler = Sampler(folder / "main.jsonl", "main", phase_file=folder / PHASE_FILE)
        self._sampler.start()

    def phase(self, name: str) -> None:
        """What is seen from now on belongs to this phase."""
        announce_phase(self._folder, name)

    def stop(self) -> None:
        """All is written."""
        self._sampler.stop()


def diagnose(
    loader: TorchDataLoader[Any], step: Callable[[Any], object], *, steps: int | None = None
) -> Diagnosis:
    """What starves `step`, and what to change: `headrace doctor run` for a loop of one's own.

    Takes half a minute to two. The step is made on real batches, then on some of them again and again: what
    it learns meanwhile is of no use. Afterwards the loader is measured by itself, with other settings, too.

    Args:
        loader: torch's or Headrace's.
        step: called with each batch.
        steps: to measure as they are; None: as many as take 4 seconds, at least 20.

    Returns:
        A `headrace.doctor.records.Diagnosis`: `verdict`, `advice`, `rates`, `stages`, …; `to_json()`.

    Raises:
        ConfigError: it isn't a DataLoader.
        HeadraceError: the loader has too few batches to measure anything.
    """
    if not isinstance(loader, TorchDataLoader):
        raise ConfigError(f"{type(loader).__name__} isn't a DataLoader; give one, torch's or Headrace's.")
    with TemporaryDirectory(prefix="headrace-doctor-") as name:
        folder = Path(name)
        observation = Observation([], usable_cores(), torch.get_num_threads())
        looks, outside = Looks(folder), Outside(os.getpid(), folder)
        examination = Examination(observation, Goal(steps), looks, DataLoader)
        begin = functools.partial(type(loader).__iter__, loader)
        try:
            made = True
            while made:
                made = False
                for batch in examination.iterate(loader, begin):
                    step(batch)
                    made = True
        except Enough:
            pass
        finally:
            looks.stop()
            outside.stop()
            uninstall_in_workers()
        observation.usage = outside.usage(observation.began)
        observation.memory = dict(outside.memory())
        observation.looks = read_counts(sorted(folder.glob("*.jsonl")))
    return judge(observation)


def main() -> None:
    """The child process: runs the script, and saves what was observed."""
    folder = Path(sys.argv[1])
    job = Job.load(folder)
    observation = Observation(job.command, usable_cores(), torch.get_num_threads())
    looks = Looks(folder)
    goal = Goal(job.steps, actual_only=bool(job.settings))
    examination = Examination(observation, goal, looks, DataLoader)
    limit_threads(job.settings)
    try:
        with installed(examination, Replacement(job.settings, job.subject, observation)):
            try:
                run_script(job)
            except torch.OutOfMemoryError as error:
                observation.ended = f"out of memory on the device: {error}"
                raise
            examination.script_ended()
    except BaseException as error:
        # However the script takes its end: by Enough, or by the interruption of another thread.
        if observation.ended != EXAMINED:
            observation.ended = _as_line(error, observation.ended)
            raise
    finally:
        looks.stop()
        observation.threads = torch.get_num_threads()
        observation.save(folder)


def _as_line(error: BaseException, known: str) -> str:
    if known.startswith("out of memory"):
        return known
    return f"{type(error).__name__}: {error}"


def run_script(job: Job) -> None:
    """As Python itself runs it."""
    sys.argv = list(job.command)
    try:
        if job.module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(job.command[0], run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(job.command[0]).resolve().parent))
            runpy.run_path(job.command[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


class Replacement:
    """Loaders with other settings, in the place of the script's own.

    Args:
        settings: none: loaders stay as they are.
        subject: the place that their loader is iterated over at; "": of any.
        observation: told of what can't be done.
    """

    def __init__(self, settings: dict[str, Any], subject: str, observation: Observation) -> None:
        self._settings = settings
        self._subject = subject
        self._observation = observation
        self._made: dict[int, tuple[TorchDataLoader[Any], TorchDataLoader[Any]]] = {}

    def is_about(self, where: str) -> bool:
        """Whether a loader that is iterated over there is to be examined."""
        return not self._subject or where == self._subject

    def of(self, loader: TorchDataLoader[Any]) -> TorchDataLoader[Any]:
        """What is to be iterated over in its place."""
        if not self._settings:
            return loader
        known = self._made.get(id(loader))
        if known is None:
            other = loader
            if self._settings.keys() & {"loader", "headrace"}:
                other = with_settings(loader, self._settings, DataLoader)
            stage = self._settings.get("without")
            if stage is not None and not without(other, stage):
                self._observation.notes.append(f"{stage} can't be left out")
            known = self._made[id(loader)] = loader, other
        return known[1]


@contextmanager
def installed(examination: Examination, replacement: Replacement) -> Iterator[None]:
    """While it lasts, the loaders of this process are examined; those of its children aren't."""
    here = os.getpid()
    patched: dict[type, Callable[..., Any]] = {}
    made = TorchDataLoader.__init__

    def watch(cls: type) -> None:
        # What the script iterates over is the outermost of these: the ones that it calls aren't watched.
        original = cls.__dict__.get("__iter__")
        if original is None or cls in patched:
            return
        patched[cls] = original

        @functools.wraps(original)
        def begin(loader: TorchDataLoader[Any]) -> Any:
            if examination.busy or os.getpid() != here or not replacement.is_about(where_from()):
                return original(loader)
            other = replacement.of(loader)
            inner = type(other).__iter__ if other is not loader else original
            return examination.iterate(other, functools.partial(inner, other))

        cls.__iter__ = begin  # type: ignore[attr-defined]

    @functools.wraps(made)
    def init(loader: TorchDataLoader[Any], *args: Any, **kwargs: Any) -> None:
        for cls in type(loader).__mro__:
            if issubclass(cls, TorchDataLoader):
                watch(cls)
        made(loader, *args, **kwargs)

    watch(TorchDataLoader)
    watch(DataLoader)
    TorchDataLoader.__init__ = init  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        TorchDataLoader.__init__ = made  # type: ignore[method-assign]
        for cls, original in patched.items():
            cls.__iter__ = original  # type: ignore[attr-defined]


def limit_threads(settings: dict[str, Any]) -> None:
    """Lets nobody in this process, or in workers that it forks, have more threads for its operators."""
    most = settings.get("threads")
    if most is None:
        return
    set_threads = torch.set_num_threads
    set_threads(most)
    torch.set_num_threads = lambda nthreads: set_threads(min(nthreads, most))


if __name__ == "__main__":
    main()
