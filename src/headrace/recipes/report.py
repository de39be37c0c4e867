"""What a run reports: lines on stderr, JSON lines in `log.jsonl`, TensorBoard. By rank 0 alone."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import headrace
from headrace.export import to_tensorboard


class Report:
    """Reports a run, within `with`.

    Args:
        out: folder of `log.jsonl`, which is appended to, and of TensorBoard's files.
        active: False on ranks that report nothing.
        tensorboard: whether to write scalars.

    Raises:
        ConfigError: TensorBoard isn't installed.
    """

    def __init__(self, out: Path, *, active: bool, tensorboard: bool) -> None:
        self._active = active
        self._open = ExitStack()
        self._file: Any = None
        if active:
            self._file = self._open.enter_context((out / "log.jsonl").open("a", encoding="utf-8"))
        self._writer: Any = None
        if active and tensorboard:
            self._writer = _writer(out)
            self._open.callback(self._writer.close)

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def say(self, text: str) -> None:
        """One line for people."""
        if self._active:
            print(text, file=sys.stderr, flush=True)  # noqa: T201

    def log(self, kind: str, **facts: Any) -> None:
        """One line for programs."""
        if self._file is not None:
            self._file.write(json.dumps({"kind": kind, "time": time.time(), **facts}) + "\n")
            self._file.flush()

    def steps(self, facts: dict[str, Any], loader: headrace.DataLoader[Any]) -> None:
        """The steps since the last line, after every `log_every`."""
        hours, minutes, seconds = (int(facts["seconds_left"] / n) for n in (3600, 60, 1))
        self.say(
            f"epoch {facts['epoch']}  step {facts['step']}  loss {facts['loss']:.3f}  lr {facts['lr']:.2g}"
            f"  {facts['images_per_second']:,.0f} images/s  stall {facts['stall']:.1%}"
            f"  {facts['memory_bytes'] / 1e9:.1f} GB  {hours}:{minutes % 60:02}:{seconds % 60:02} left"
        )
        self.log("step", **facts)
        self._scalars("train", facts)
        if self._writer is not None:
            to_tensorboard(loader.stats(), self._writer, facts["step"], tag="headrace/train")

    def epoch(self, facts: dict[str, Any]) -> None:
        """An evaluation."""
        self.say(
            f"epoch {facts['epoch']}: top-1 {facts['top1']:.2%}, top-5 {facts['top5']:.2%}, loss"
            f" {facts['loss']:.4f} on {facts['images']:,} images; best top-1 {facts['best_top1']:.2%}"
        )
        self.log("epoch", **facts)
        self._scalars("val", facts)

    def _scalars(self, tag: str, facts: dict[str, Any]) -> None:
        if self._writer is not None:
            for name, value in facts.items():
                self._writer.add_scalar(f"{tag}/{name}", value, facts["step"])


def _writer(out: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise headrace.ConfigError(
            "--tensorboard needs TensorBoard: pip install 'headrace[tensorboard]', or leave it out."
        ) from error
    return SummaryWriter(out)
