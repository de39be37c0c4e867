"""A batch on its way from a worker process: pickled where it was made, its tensors in shared memory."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from typing import IO, Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from headrace.engine.shared_memory import Room
from headrace.errors import ConfigError

ON_DEVICE = (
    "a worker process made a tensor on {device}. Worker processes hand batches over in shared memory of the"
    " host; a device's memory can't be handed over safely, and each process would take a share of it. Return"
    " CPU tensors from the dataset and collate_fn, and pass device={device!r} to headrace.DataLoader, which"
    " moves whole batches; or use worker_kind='thread'."
)


@dataclass(frozen=True)
class Parcel:
    """What a worker sends. It opens itself: what is received is a `Received`.

    Attributes:
        pickled: the batch.
        shared: bytes of its tensors, which lie in shared memory.
    """

    pickled: bytes
    shared: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (self.pickled, self.shared)


@dataclass(frozen=True)
class Received:
    """A batch that has come.

    Attributes:
        data: what the worker made.
        nbytes: memory that it takes.
        shared: how much of that is shared memory.
    """

    data: Any
    nbytes: int
    shared: int

    def pin_memory(self) -> Received:
        """As torch's loader asks for it."""
        return replace(self, data=pin_memory(self.data))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Lost:
    """In place of a batch whose tensors couldn't be taken over, as where its worker died meanwhile.

    Attributes:
        error: why.
    """

    error: Exception


def pack(batch: Any, room: Room) -> Parcel:
    """Pickles `batch` in the thread that made it, so that what can't be sent is an error of its batch; torch
    pickles in a thread behind a queue, where the error is printed and the batch never comes.

    Raises:
        ConfigError: a tensor lies on a device.
        NoRoomError: its tensors don't fit in shared memory.
    """
    if not room.ample():
        # Before any of them is put there: one that is, but never sent, would stay.
        counter = _Counter()
        counter.dump(batch)
        room.take(counter.unshared)
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(batch)
    room.used(pickler.shared)
    return Parcel(buffer.getvalue(), pickler.shared)


def _open(pickled: bytes, shared: int) -> Received | Lost:
    try:
        return Received(pickle.loads(pickled), len(pickled) + shared, shared)
    except (ConnectionError, FileNotFoundError, EOFError) as error:
        return Lost(error)  # raised here, it would end torch's pin thread


class _Pickler(ForkingPickler):
    """Counts the bytes of tensors while it pickles."""

    def __init__(self, buffer: IO[bytes]) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self.shared = 0
        self.unshared = 0
        self._seen: set[int] = set()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self._count(value)
        return NotImplemented

    def _count(self, tensor: torch.Tensor) -> None:
        if tensor.device.type not in ("cpu", "meta"):
            raise ConfigError(ON_DEVICE.format(device=str(tensor.device)))
        if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_nested:
            return  # those with parts are asked for again, part by part
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:  # its address, as its data move
            self._seen.add(storage._cdata)
            self.shared += storage.nbytes()
            self.unshared += 0 if storage.is_shared() else storage.nbytes()


class _Counter(_Pickler):
    """Only counts: the tensors stay where they are."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self._count(value)
            return int, ()
        return NotImplemented
