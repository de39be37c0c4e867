"""What runs in a worker process: the user's dataset behind its guard, and what it makes, sent safely."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch.utils.data import Dataset, default_collate, default_convert, get_worker_info

from headrace.engine.guarded import FORKED_CUDA_SIGN, Guarded, Request
from headrace.engine.in_hand import Hand, InHand
from headrace.engine.parcel import Parcel, pack
from headrace.engine.shared_memory import NoRoomError, Room, tensor_bytes
from headrace.engine.shared_pickle import SharedPickle
from headrace.errors import ConfigError

FORKED_CUDA = (
    "the dataset, a transform or collate_fn uses CUDA in a worker process, which was forked from a process"
    " that uses CUDA already; CUDA can't work there. Return CPU tensors from them, and pass device='cuda' to"
    " headrace.DataLoader, which moves whole batches; or use worker_kind='thread'."
)


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """What a worker is asked for.

    Attributes:
        request: for `Guarded`.
        seed: of this epoch's workers, as torch draws it: theirs are this plus their number.
        number: of the request in this epoch.
        deadly: samples that are errors before they are tried, each with the cause.
        error: what to raise in place of the batch; None: it is to be made.
    """

    request: Request
    seed: int
    number: int
    deadly: Mapping[Any, str] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """In place of a batch that doesn't fit in /dev/shm.

    Attributes:
        needed: bytes, as far as they are known.
    """

    needed: int


@dataclass(frozen=True)
class Forked:
    """What a worker needs, where fork has copied it."""

    content: Any

    def load(self) -> Any:
        """The content."""
        return self.content

    def close(self) -> None:
        """Nothing is held open."""


class WorkerDataset(Dataset[Any]):
    """What torch's loader takes for the dataset.

    Args:
        packed: holds the user's dataset, collate_fn, worker_init_fn or None, and what makes a `Guarded`.
        on_error: as `Guarded` takes it.
        room: in /dev/shm.
        in_hand: where workers note what they are at.
    """

    def __init__(self, packed: Forked | SharedPickle, on_error: str, room: Room, in_hand: InHand) -> None:
        self._packed: Any = packed  # a `SharedPickle` changes on its way
        self._on_error = on_error
        self._room = room
        self.in_hand = in_hand
        self._hand: Hand | None = None
        self._guarded: Guarded | None = None
        self._error: Exception | None = None

    def started(self) -> None:
        """In the process that started the workers: all of them have what they need."""
        self._packed.close()
        self.in_hand.started()

    def begin(self, worker: int) -> None:
        """torch's worker_init_fn. An error in it is every batch's: torch gives it to one only."""
        self.in_hand.started()
        self._hand = self.in_hand.of(worker)
        try:
            self._begin(worker)
        except Exception as error:
            self._error = error

    def __getitem__(self, asked: WorkerRequest) -> Any:
        """One sample that isn't to be batched."""
        return self._make(asked, lambda guarded: guarded[asked.request])

    def __getitems__(self, asked: WorkerRequest) -> Any:
        """A batch."""
        return self._make(asked, lambda guarded: guarded.__getitems__(asked.request))

    def _begin(self, worker: int) -> None:
        packed, self._packed = self._packed, None
        dataset, collate, user_init, guard = packed.load()
        self._guarded = guard(dataset, partial(_collate, collate, self._room), self._on_error)
        self._guarded.hand = self._hand
        # Code that asks where it runs is shown the user's dataset, not the guard around it.
        object.__setattr__(get_worker_info(), "dataset", dataset)  # torch means it to be read only
        if "cv2" in sys.modules:
            # As torch.set_num_threads(1), which torch has called: each worker would use all cores.
            sys.modules["cv2"].setNumThreads(0)
        if user_init is not None:
            user_init(worker)

    def _make(self, asked: WorkerRequest, make: Callable[[Any], Any]) -> Parcel | Refused:
        if self._error is not None:
            raise self._error
        if asked.error is not None:
            raise RuntimeError(asked.error)
        assert self._hand is not None
        assert self._guarded is not None
        self._hand.begin(asked.number)
        try:
            made = self._made(asked, make)
        except Exception:
            self._hand.done()
            raise
        self._hand.done()  # not where the process is ending: a sample has called sys.exit()
        return made

    def _made(self, asked: WorkerRequest, make: Callable[[Any], Any]) -> Parcel | Refused:
        info: Any = get_worker_info()
        object.__setattr__(info, "seed", asked.seed + info.id)
        guarded: Any = self._guarded
        guarded.deadly = asked.deadly
        try:
            return pack(make(guarded), self._room)
        except NoRoomError as error:
            return Refused(error.needed)
        except RuntimeError as error:
            if "unable to allocate shared memory" in str(error):  # newer versions of torch notice it
                return Refused(0)
            if FORKED_CUDA_SIGN in str(error):
                raise ConfigError(FORKED_CUDA) from error
            raise
        finally:
            self._room.release()


def begin_worker(worker: int) -> None:
    """The worker_init_fn that torch's loader is given."""
    dataset: Any = get_worker_info().dataset  # type: ignore[union-attr]
    dataset.begin(worker)


def _collate(collate: Callable[[Any], Any], room: Room, samples: Any) -> Any:
    # torch's own writes the batch to shared memory at once, and the user's may call that.
    if not room.ample():
        room.take(tensor_bytes(samples, arrays=collate in (default_collate, default_convert)))
    return collate(samples)
