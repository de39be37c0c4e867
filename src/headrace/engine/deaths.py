"""Worker processes that die: what they had in hand, and what is done about it."""

from __future__ import annotations

import logging
import signal
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.engine.guarded import file_of
from headrace.engine.in_hand import NONE, Note
from headrace.engine.in_worker import WorkerRequest
from headrace.errors import printable

log = logging.getLogger("headrace")

# A sample that was in hand when its worker died may have been there by chance: the kernel picks a process
# where memory runs out. The second time it is taken for the cause.
ENOUGH = 2
# Replacements in a row from which nothing came, beside one for each batch that may hold a deadly sample.
PATIENCE = 3
SHOWN = 8


@dataclass(frozen=True)
class Death:
    """One worker's. (Or what a worker that lives is at: without a code.)

    Attributes:
        pid: of the process.
        code: its exit code, negative for a signal; None: not known.
        request: that it had in hand; None: it waited for one.
        note: what it noted.
    """

    pid: int
    code: int | None
    request: WorkerRequest | None
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
        why = {"SIGKILL": ", as by the kernel where memory runs out", "SIGBUS": ", as where /dev/shm is full"}
        return f"was killed by {name}{why.get(name, '')}"

    @property
    def sample(self) -> tuple[Any] | None:
        """The sample in hand, in a tuple; None: there was none, or a whole batch."""
        if self.request is None or self.note.place == NONE:
            return None
        if self.note.stand_in != NONE:
            return (self.note.stand_in,)
        index = self.request.request.batch.listed()[self.note.place]
        return (index,) if isinstance(index, Hashable) else None

    def told(self, dataset: Any) -> str:
        """The whole of it, after "worker"."""
        return f"(pid {self.pid}) {self.how}, with {self.in_hand(dataset)} in hand"

    def in_hand(self, dataset: Any) -> str:
        """In words; a sample with its file where `dataset` tells it."""
        if self.request is None:
            return "nothing"
        if self.sample is None:
            return f"the batch of {samples_of(self.request)}"
        path = file_of(dataset, self.sample[0])
        return f"sample {self.sample[0]}" + ("" if path is None else f" ({printable(path)})")


class WorkerDiedError(Exception):
    """Workers died, so that batches of theirs won't come. Never reaches the user.

    Attributes:
        deaths: one or more.
    """

    def __init__(self, deaths: Sequence[Death]) -> None:
        super().__init__(deaths)
        self.deaths = deaths

    def told(self, dataset: Any) -> str:
        """What happened, in words."""
        return "; ".join(f"DataLoader worker {death.told(dataset)}" for death in self.deaths)


class Deaths:
    """What worker processes of one loader died of.

    Attributes:
        deadly: samples that are not to be tried again, each with what it did.
    """

    def __init__(self) -> None:
        self.deadly: Mapping[Any, str] = {}
        self._batches: dict[int, str] = {}
        self._counts: Counter[Any] = Counter()
        self._vain = 0

    def begin(self) -> None:
        """An epoch begins: what happened by chance in another one isn't counted."""
        self._batches.clear()
        self._counts.clear()
        self._vain = 0

    def progress(self) -> None:
        """A batch has come."""
        self._vain = 0

    def add(self, died: WorkerDiedError, pending: int, dataset: Any) -> None:
        """Workers are to be replaced; `pending`: batches that are to be made again.

        Raises:
            RuntimeError: there is no use in it.
        """
        told = died.told(dataset)
        self._vain += 1
        for death in died.deaths:
            self._blame(death)
        in_hand = any(death.request is not None for death in died.deaths)
        if self._vain > PATIENCE + (pending if in_hand else 0):
            raise RuntimeError(
                f"{told}. {self._vain} times in a row workers died before a batch came of it, so they aren't"
                " replaced again. Where memory runs out, use fewer workers (num_workers) or smaller batches;"
                " where they die at their start, look at worker_init_fn and at what the dataset opens."
            )
        log.warning("%s; the processes are replaced, and make the batches in flight again", told)

    def again(self, request: WorkerRequest) -> WorkerRequest:
        """`request` as it is to be asked for once more."""
        return replace(request, deadly=self.deadly, error=self._batches.get(request.number))

    def _blame(self, death: Death) -> None:
        if death.request is None:
            return
        sample = death.sample
        key = ("batch", death.request.number) if sample is None else ("sample", *sample)
        self._counts[key] += 1
        if self._counts[key] < ENOUGH:
            return
        self._vain = 0
        if sample is None:
            self._batches[death.request.number] = (
                f"the batch of {samples_of(death.request)} ended its worker process twice, which {death.how},"
                " while it was begun, collated or sent. Where memory runs out, make batches smaller."
            )
        else:
            # Another mapping: the one before may be being pickled.
            cause = f"it ended its worker process twice, which {death.how}"
            self.deadly = {**self.deadly, sample[0]: cause}


def samples_of(request: WorkerRequest) -> str:
    """The samples of a request, or the first of them."""
    indices = request.request.batch.listed()
    more = ", …" if len(indices) > SHOWN else ""
    return f"samples {', '.join(str(index) for index in indices[:SHOWN])}{more}"
