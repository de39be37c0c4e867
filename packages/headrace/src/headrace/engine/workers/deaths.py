"""Worker processes that die: what they were making, and which samples are not to be tried again."""

from __future__ import annotations

import logging
import signal
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.engine.error_policy import Request, file_of
from headrace.engine.progress import NONE, Note
from headrace.errors import printable

log = logging.getLogger("headrace")

# A sample that was being made when its worker died may have been there by chance: the kernel picks a process
# if memory runs out. The second time it is taken for the cause.
ENOUGH = 2
# Deaths in a row before any batch comes, beside one of each worker.
PATIENCE = 3
SHOWN = 8
NEXT = "the next batch of its IterableDataset"
STREAM_LOST = (
    "Without a state of its stream, a worker of an IterableDataset can't be replaced within an epoch: nobody"
    " else knows where it was. Begin another epoch; or give state_dict() and load_state_dict() to the"
    " dataset, or to what its __iter__() returns. If memory runs out, use fewer workers."
)


@dataclass(frozen=True)
class Death:
    """The end of one worker, or, without a code, what a living one is making."""

    pid: int
    code: int | None  # exit code, negative for a signal, or None if it isn't known
    request: Request | None  # what the worker was making, or None if it waited for a request
    note: Note

    @property
    def how(self) -> str:
        """In words, after "it"."""
        if self.code is None:
            return "ended"
        if self.code >= 0:
            return f"exited with code {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = f"signal {-self.code}"
        return f"was killed by {name}" + (
            ", as the kernel does if memory runs out" if name == "SIGKILL" else ""
        )

    @property
    def sample(self) -> tuple[Any] | None:
        """The sample that was being made, in a tuple, or None if there was none, or a whole batch."""
        if self.request is None or self.note.place == NONE:
            return None
        if self.note.stand_in != NONE:
            return (self.note.stand_in,)
        index = self.request.batch.listed()[self.note.place]
        return (index,) if isinstance(index, Hashable) else None

    def describe(self, dataset: Any) -> str:
        """The whole of it, after "worker"."""
        return f"(pid {self.pid}) {self.how}, while making {self.current_work(dataset)}"

    def current_work(self, dataset: Any) -> str:
        """Describes what was being made; a sample with its file if `dataset` knows it."""
        if self.request is None:
            return "nothing"
        if self.sample is None:
            return f"the batch of {samples_of(self.request)}" if len(self.request.batch.indices) else NEXT
        path = file_of(dataset, self.sample[0])
        return f"sample {self.sample[0]}" + ("" if path is None else f" ({printable(path)})")


class Deaths:
    """Counts what the workers of one pool died of."""

    def __init__(self) -> None:
        self.quarantined: Mapping[Any, str] = {}  # samples not to be tried again, each with what it did
        self._counts: dict[Any, int] = {}
        self._in_a_row = 0
        self._patience = PATIENCE

    def start_epoch(self, workers: int) -> None:
        """Forgets what happened by chance in other epochs; this one has `workers` workers."""
        self._counts.clear()
        self._in_a_row = 0
        self._patience = PATIENCE + workers

    def progress(self) -> None:
        """A batch has come."""
        self._in_a_row = 0

    def add(self, death: Death, dataset: Any) -> str | None:
        """A worker died and is to be replaced. Returns why its request isn't to be made again, or None if it
        is. Raises RuntimeError if there is no use in replacing workers."""
        described = f"DataLoader worker {death.describe(dataset)}"
        self._in_a_row += 1
        error = self._blame(death)
        if self._in_a_row > self._patience:
            raise RuntimeError(
                f"{described}. {self._in_a_row} times in a row a worker died before a batch came, so it isn't"
                " replaced again. If memory runs out, use fewer workers (num_workers) or smaller batches;"
                " where they die at their start, look at worker_init_fn and at what the dataset opens."
            )
        log.warning("%s; the process is replaced, and makes its batches again", described)
        return error

    def _blame(self, death: Death) -> str | None:
        if death.request is None:
            return None
        sample = death.sample
        key: Any = ("batch", death.note.request) if sample is None else ("sample", *sample)
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count < ENOUGH:
            return None
        self._in_a_row = 0
        if sample is None:
            return (
                f"the batch of {samples_of(death.request)} ended its worker process twice, which {death.how},"
                " while it was started, collated or sent. If memory runs out, make batches smaller."
            )
        cause = f"it ended its worker process twice, which {death.how}"
        self.quarantined = {**self.quarantined, sample[0]: cause}
        return None


def samples_of(request: Request) -> str:
    """The samples of a request, or the first of them."""
    indices: Sequence[Any] = request.batch.listed()
    more = ", …" if len(indices) > SHOWN else ""
    return f"samples {', '.join(str(index) for index in indices[:SHOWN])}{more}"
