"""Runs a script and times its loops over DataLoaders, for entrants that watch from inside."""

from __future__ import annotations

import contextlib
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader

END = object()
WARM_UP = 3  # steps that don't count


class Enough(BaseException):
    """Ends the script."""


@dataclass
class Loop:
    """The loops over one loader: seconds in next(), seconds between, those of first batches, samples."""

    loader: DataLoader[Any]
    waits: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    samples: int = 0

    @property
    def seconds(self) -> float:
        return sum(self.waits) + sum(self.steps)


def watch(
    command: list[str],
    seconds: float,
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> list[Loop]:
    """The loops of a script, the longest first, until it ends or `seconds` after the first batch.

    Each step is taken within `around()`.
    """
    loops: dict[int, Loop] = {}
    began: list[float] = []
    original = DataLoader.__iter__

    def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
        loop = loops.setdefault(id(loader), Loop(loader))
        start, first = time.perf_counter(), True
        inner = original(loader)
        while (batch := next(inner, END)) is not END:
            given = time.perf_counter()
            with around():
                yield batch
            began.append(given)
            if len(began) > WARM_UP:
                loop.waits.append(given - start)
                loop.steps.append(time.perf_counter() - given)
                loop.firsts += loop.waits[-1:] if first else []
                loop.samples += samples_of(batch)
            first, start = False, time.perf_counter()
            if start - began[0] > seconds:
                raise Enough

    DataLoader.__iter__ = iterate  # type: ignore[method-assign]
    sys.argv = command
    with contextlib.suppress(Enough), contextlib.redirect_stdout(sys.stderr):
        runpy.run_path(command[0], run_name="__main__")
    return sorted(loops.values(), key=lambda loop: -loop.seconds)


def samples_of(batch: Any) -> int:
    """The length of the batch's first tensor."""
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return len(batch)
