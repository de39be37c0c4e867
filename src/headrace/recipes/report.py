"""What is said of a run: a bar on a terminal, JSON lines, TensorBoard. By rank 0 alone."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

import headrace
from headrace.export import to_tensorboard

LOG = "log.jsonl"


@dataclass(frozen=True)
class StepLine:
    """The latest steps.

    Attributes:
        step, epoch: optimizer steps so far; number of the epoch they are in.
        loss: mean over the steps since the last line, of this rank's pictures.
        lr: of the next step.
        images_per_second: of all ranks, since the last line.
        stall: 0 to 1: of the epoch so far, the time that steps waited for pictures.
        seconds_left: of training, evaluation not counted.
        memory_bytes: the most that torch took on the device; on the CPU, the process's.
    """

    step: int
    epoch: int
    loss: float
    lr: float
    images_per_second: float
    stall: float
    seconds_left: float
    memory_bytes: int


@dataclass(frozen=True)
class EpochLine:
    """An evaluation.

    Attributes:
        epoch: number of the epoch that has ended; step: optimizer steps so far.
        top1, top5: 0 to 1, of `pictures`, each counted once.
        loss: mean over them.
        best_top1: so far.
    """

    epoch: int
    step: int
    top1: float
    top5: float
    loss: float
    pictures: int
    best_top1: float


class Report:
    """Within `with`, says how a run goes.

    Args:
        out: folder of `log.jsonl`, which is added to, and of TensorBoard's files.
        total: optimizer steps of the whole run.
        active: False: says nothing (other ranks).
        tensorboard: write scalars.

    Raises:
        ConfigError: TensorBoard isn't installed.
    """

    def __init__(self, out: Path, total: int, *, active: bool, tensorboard: bool) -> None:
        self._active = active
        self._console = Console(stderr=True, highlight=False)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[text]}"),
        )
        # A log file has no cursor to move: it gets lines.
        self._bar = Progress(
            *columns, console=self._console, disable=not (active and self._console.is_terminal)
        )
        self._task = self._bar.add_task("epoch 0", total=total, text="")
        self._file = open(out / LOG, "a", encoding="utf-8") if active else None  # noqa: SIM115  # until __exit__
        self._writer: Any = _writer(out) if active and tensorboard else None

    def __enter__(self) -> Report:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        for each in (self._file, self._writer):
            if each is not None:
                each.close()

    def say(self, text: str) -> None:
        """One line for people."""
        if self._active:
            self._console.print(text, markup=False, soft_wrap=True)

    def start(self, facts: dict[str, Any]) -> None:
        """What is run, once."""
        self._write("start", facts)

    def step(self, line: StepLine, loader: headrace.DataLoader) -> None:
        """After every `log_every` steps."""
        if not self._active:
            return
        text = (
            f"step {line.step}  loss {line.loss:.3f}  lr {line.lr:.2g}  {line.images_per_second:,.0f}"
            f" images/s  stall {line.stall:.1%}  {line.memory_bytes / 1e9:.1f} GB"
            f"  {_duration(line.seconds_left)} left"
        )
        if self._bar.disable:
            self.say(f"epoch {line.epoch}  {text}")
        self._bar.update(self._task, completed=line.step, description=f"epoch {line.epoch}", text=text)
        self._write("step", asdict(line))
        self._scalars("train", asdict(line), line.step)
        if self._writer is not None:
            to_tensorboard(loader.stats(), self._writer, line.step, tag="headrace/train")

    def epoch(self, line: EpochLine) -> None:
        """After every evaluation."""
        self.say(
            f"epoch {line.epoch}: top-1 {line.top1:.2%}, top-5 {line.top5:.2%}, loss {line.loss:.4f} on"
            f" {line.pictures:,} pictures; best top-1 {line.best_top1:.2%}"
        )
        self._write("epoch", asdict(line))
        self._scalars("val", asdict(line), line.step)

    def end(self, facts: dict[str, Any]) -> None:
        """Why the run ended."""
        self._write("end", facts)

    def _write(self, kind: str, facts: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"kind": kind, "time": time.time(), **facts}) + "\n")
            self._file.flush()

    def _scalars(self, tag: str, values: dict[str, Any], step: int) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(f"{tag}/{name}", value, step)


def _writer(out: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise headrace.ConfigError(
            "tensorboard isn't installed: pip install 'headrace[tensorboard]', or leave --tensorboard out."
        ) from error
    return SummaryWriter(out)


def _duration(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left:02}"
