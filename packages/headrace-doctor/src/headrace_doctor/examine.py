"""Examines a training script, or a loader and a step: measured by `measure`, judged by `doctor`.

Run as a module it is the process of the script: ``python -m headrace_doctor.examine FOLDER``, with a `Job` in
FOLDER/job.json.
"""

from __future__ import annotations

import functools
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils.data import DataLoader

from headrace_doctor.doctor.diagnosis import Report
from headrace_doctor.doctor.diagnosis import diagnose as judge
from headrace_doctor.errors import ConfigError
from headrace_doctor.machine import usable_cores
from headrace_doctor.measure.examination import Enough, Examination
from headrace_doctor.measure.hooks import Begin, intercepted
from headrace_doctor.measure.observed import EXAMINED, Observation
from headrace_doctor.measure.outside import Outside
from headrace_doctor.measure.sampler import begin_sampled, read_counts, sampled
from headrace_doctor.measure.subject import describe, is_replaceable, where_from, with_settings

JOB, OUTPUT = "job.json", "output.txt"
# Libraries read these when they start their threads, which is before the script's own code.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """An examination of a script."""

    command: list[str]  # the script, or the module, and its arguments
    module: bool = False  # whether it is a module
    steps: int | None = None  # of the actual phase, or None for as many as take a few seconds
    settings: dict[str, Any] = field(default_factory=dict)  # in place of the script's; see `measure.subject`
    subject: str = ""  # "file.py:12" of the loader that the settings are for, or "" for any loader
    loader: str = ""  # that loader as code, as in `LoaderFacts`, or "" for any that is iterated over there
    brief: bool = False  # whether only the unchanged steps are measured, as always with settings
    limit: float | None = None  # seconds after which the script is ended, if any

    def run(
        self, *, quiet: bool, progress: Callable[[str], None] = lambda _: None
    ) -> tuple[int, Observation | None, str]:
        """Runs the script in a process of its own until all is measured.

        Args:
            quiet: keep the script's output from the terminal.
            progress: called with the name of each phase, from another thread, up to a second late.

        Returns:
            (exit status; the observation, or None if it ended too early; the output, if quiet).

        Raises:
            KeyboardInterrupt: by Ctrl-C, before all was measured.
        """
        # Workers of a script that was ended may write on for a moment while the folder is removed.
        with TemporaryDirectory(prefix="headrace-doctor-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            (folder / JOB).write_text(json.dumps(asdict(self)))
            threads = self.settings.get("threads")
            limits = {} if threads is None else {name: str(threads) for name in THREAD_VARIABLES}
            with open(folder / OUTPUT, "wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "headrace_doctor.examine", name],
                    env={**os.environ, **limits},
                    stdout=output if quiet else None,
                    stderr=subprocess.STDOUT if quiet else None,
                )
                outside = Outside(process.pid, folder, progress)
                interrupt: KeyboardInterrupt | None = None
                try:
                    process.wait(self.limit)
                except subprocess.TimeoutExpired:
                    process.kill()
                except KeyboardInterrupt as error:
                    interrupt = error  # Ctrl-C reaches the script as well
                except BaseException:
                    process.terminate()
                    raise
                finally:
                    status = process.wait()
                    outside.stop()
            observation = Observation.load(folder)
            if interrupt is not None and (observation is None or observation.ended != EXAMINED):
                raise interrupt
            if observation is not None:
                add_observed(observation, outside, folder)
            return status, observation, (folder / OUTPUT).read_text(errors="replace")


def add_observed(observation: Observation, outside: Outside, folder: Path) -> None:
    """Adds the records from outside, and of the samplers."""
    observation.usage = outside.usage(observation.began)
    observation.memory |= outside.memory
    observation.watching = outside.share
    observation.looks = read_counts(folder)


def diagnose(loader: DataLoader[Any], step: Callable[[Any], object], *, steps: int | None = None) -> Report:
    """Finds what slows `step` down, and what to change: `headrace doctor run` for a loop of your own.

    Takes half a minute to a minute. The step is called on real batches, then on some of them again and again,
    also with other numbers of threads: what it learns meanwhile is of no use. Then the loader is measured
    alone, with other settings, too.

    Args:
        loader: torch's or Headrace's.
        step: called with each batch.
        steps: number of steps to measure unchanged. Default: as many as take 4 seconds, at least 20.

    Returns:
        A `doctor.records.Diagnosis`: `verdict`, `advice`, `rates`, `stages`, …; `to_json()`, `to_html()`.

    Raises:
        ConfigError: the loader isn't a DataLoader.
        DoctorError: the loader has too few batches to measure anything.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigError(f"{type(loader).__name__} isn't a DataLoader; give one, torch's or Headrace's.")
    with TemporaryDirectory(prefix="headrace-doctor-") as name:
        folder = Path(name)
        observation = Observation([], usable_cores(), torch.get_num_threads())
        outside = Outside(os.getpid(), folder)
        try:
            with examined(observation, Job([], steps=steps), folder):
                made = True
                while made:
                    made = False
                    for batch in loader:
                        step(batch)
                        made = True
        finally:
            outside.stop()
        add_observed(observation, outside, folder)
    return judge(observation)


@contextmanager
def examined(observation: Observation, job: Job, folder: Path) -> Iterator[None]:
    """Examines the loaders of this process meanwhile, but not those of its children."""
    with sampled(folder) as announce:
        counted = functools.partial(read_counts, folder)
        brief = job.brief or bool(job.settings)
        examination = Examination(observation, job.steps, announce, counted, brief)
        replacement = Replacement(job)

        def begin(loader: DataLoader[Any], original: Begin) -> Iterator[Any]:
            if examination.busy:
                return begin_sampled(folder, loader, original)
            other = replacement.of(loader, where_from())
            inner = type(other).__iter__ if other is not loader else original
            return examination.iterate(other, functools.partial(begin_sampled, folder, other, inner))

        try:
            with interruptible(examination), intercepted(begin, examination.made):
                yield
                examination.script_ended()
        except Enough:
            pass
        except BaseException:  # the interruption of another thread, perhaps
            if observation.ended != EXAMINED:
                raise
        finally:
            examination.close()
            replacement.report(observation)


@contextmanager
def interruptible(examination: Examination) -> Iterator[None]:
    """Lets the examination end the script from another thread though SIGINT is ignored, as in the background
    of a shell script; other interruptions remain without effect."""

    def interrupted(*_: object) -> None:
        if examination.over:
            raise Enough("all is measured")

    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if not ignored or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def main() -> None:
    """Runs the script in the child process, and saves the observation."""
    folder = Path(sys.argv[1])
    job = Job(**json.loads((folder / JOB).read_text()))
    limit_threads(job.settings)
    observation = Observation(job.command, usable_cores(), torch.get_num_threads())
    try:
        with examined(observation, job, folder):
            run_script(job.command, module=job.module)
    except BaseException as error:
        memory = isinstance(error, torch.OutOfMemoryError)
        kind = "out of memory on the device" if memory else type(error).__name__
        observation.ended = f"{kind}: {error}"
        raise
    finally:
        if observation.ended != EXAMINED:
            observation.threads = torch.get_num_threads()
        observation.save(folder)


def run_script(command: Sequence[str], *, module: bool = False) -> None:
    """Runs a script, or a module, as Python itself does."""
    sys.argv = list(command)
    sys.path.insert(0, os.getcwd() if module else str(Path(command[0]).resolve().parent))
    try:
        if module:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


class Replacement:
    """Loaders with a job's settings, in place of the script's own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._wanted = bool(job.settings.keys() & {"loader", "headrace", "worker_threads"})
        self._made: dict[int, tuple[DataLoader[Any], DataLoader[Any]]] = {}  # loader, and the other
        self._left: dict[str, None] = {}  # why loaders were left as they are, in their order

    def of(self, loader: DataLoader[Any], where: str) -> DataLoader[Any]:
        """The loader to be iterated over in place of this one at "file.py:12"."""
        if not self._wanted or self._job.subject not in ("", where):
            return loader
        code, name = describe(loader, where).code, type(loader).__name__
        if id(loader) in self._made:
            return self._made[id(loader)][1]
        if self._job.loader not in ("", code):
            self._left[f"another loader at {where} was left as it is: {code}"] = None
        elif not is_replaceable(loader):
            self._left[f"the loader at {where} was left as it is: {name} has an __iter__ of its own"] = None
        else:
            self._made[id(loader)] = loader, with_settings(loader, self._job.settings)
            return self._made[id(loader)][1]
        return loader

    def report(self, observation: Observation) -> None:
        """Notes the loaders that were left as they are; if that is all, the settings count as refused."""
        observation.notes += self._left
        if self._wanted and not self._made:
            observation.notes += [] if self._left else [f"no loader was iterated over at {self._job.subject}"]
            observation.refused = True


def limit_threads(settings: dict[str, Any]) -> None:
    """Bounds the threads of operators, in this process and in workers that it forks."""
    most = settings.get("threads")
    if most is None:
        return
    set_threads = torch.set_num_threads
    set_threads(most)
    torch.set_num_threads = lambda nthreads: set_threads(min(nthreads, most))


if __name__ == "__main__":
    main()
