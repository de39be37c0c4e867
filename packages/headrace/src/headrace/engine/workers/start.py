"""Hands worker processes what they start with: by fork unchanged, otherwise pickled once for all."""

from __future__ import annotations

import functools
import gc
import mmap
import os
import pickle
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import IO, Any

import torch

from headrace.engine.workers.transport import storage_bytes, storage_of
from headrace.errors import ConfigError

ALIGNMENT = 64
SMALL_NBYTES = 4096  # what is smaller isn't worth a place of its own
# multiprocessing registers these although pickle itself knows them.
PLAIN = (functools.partial, types.MethodType, types.MethodDescriptorType, types.WrapperDescriptorType)


class SharedPickle:
    """Holds the pickle of `parts` in memory without a name, which is gone with the last process that has it.

    What can only be handed to a process while it starts (locks, queues, tensors that are in shared memory
    already) goes beside it. Arrays and tensors aren't copied by the processes: each sees the same pages until
    it writes to them. Raises ConfigError if a part can't be pickled, by its name in `parts`.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._stream = os.memfd_create(f"headrace-{os.getpid()}-pickle")
        self._buffers = os.memfd_create(f"headrace-{os.getpid()}-buffers")
        self._order: list[tuple[int, int]] = []  # (start, size) of each buffer, in the order of the pickle
        try:
            with open(self._stream, "wb", closefd=False) as file:
                pickler = _Pickler(file, self._store)
                pickler.dump(tuple(parts.values()))
        except Exception as error:
            self.close()
            raise ConfigError(explain_unpicklable(parts, error)) from error
        self._beside = pickler.beside

    def __reduce__(self) -> tuple[Any, ...]:
        # Called while a process starts, once for each.
        files = DupFd(self._stream), DupFd(self._buffers)
        return _Arrived, (*files, self._order, self._beside)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """To be called when no more processes are to be started."""
        for name in ("_stream", "_buffers"):
            file = self.__dict__.pop(name, None)
            if file is not None:
                os.close(file)

    def _store(self, buffer: pickle.PickleBuffer) -> bool:
        """pickle's buffer_callback: whether the buffer is to stay within the pickle."""
        content = buffer.raw()
        if len(content) < SMALL_NBYTES:
            return True
        start = -(-os.lseek(self._buffers, 0, os.SEEK_END) // ALIGNMENT) * ALIGNMENT
        self._order.append((start, len(content)))
        os.lseek(self._buffers, start, os.SEEK_SET)
        while len(content):
            content = content[os.write(self._buffers, content) :]
        return False


class _Arrived:
    """A `SharedPickle` in a process that it was handed to."""

    def __init__(self, stream: Any, buffers: Any, order: list[tuple[int, int]], beside: list[Any]) -> None:
        self._stream: int = stream.detach()
        self._buffers: int = buffers.detach()
        self._order = order
        self._beside = beside

    def load(self) -> Any:
        """The parts, as a tuple. Once only."""
        collects = gc.isenabled()
        gc.disable()  # it would look through a million new objects again and again
        _loading.beside = self._beside
        try:
            with (
                mmap.mmap(self._stream, 0, access=mmap.ACCESS_READ) as file,
                memoryview(file) as pickled,
            ):
                return pickle.loads(pickled, buffers=self._mapped())
        finally:
            _loading.beside = []
            os.close(self._stream)
            os.close(self._buffers)
            if collects:
                gc.enable()

    def _mapped(self) -> list[memoryview]:
        if not self._order:
            return []
        whole = memoryview(mmap.mmap(self._buffers, 0, access=mmap.ACCESS_COPY))
        return [whole[start : start + size] for start, size in self._order]


class _Loading(threading.local):
    beside: Sequence[Any] = ()


_loading = _Loading()


class _Pickler(ForkingPickler):
    def __init__(self, file: IO[bytes], store: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, True, store)
        self.beside: list[Any] = []

    def reducer_override(self, value: Any) -> Any:
        if self._goes_beside(value):
            self.beside.append(value)
            return _from_beside, (len(self.beside) - 1,)
        if isinstance(value, torch.UntypedStorage):
            return storage_of, (pickle.PickleBuffer(storage_bytes(value).data),)
        return NotImplemented

    def _goes_beside(self, value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            return value.device.type not in ("cpu", "meta")
        if isinstance(value, torch.UntypedStorage):
            return value.is_shared()
        if isinstance(value, (torch.storage.TypedStorage, type, *PLAIN)):
            return False
        kind = type(value)
        if kind.__module__.split(".")[0] == "multiprocessing" or kind.__module__.startswith(
            "torch.multiprocessing"
        ):
            return True
        # What multiprocessing and others have registered for it: connections, sockets, shared values.
        return kind in self.dispatch_table


def _from_beside(index: int) -> Any:
    return _loading.beside[index]


def explain_unpicklable(parts: Mapping[str, Any], error: Exception) -> str:
    """The message for the user: `error` was raised as `parts`, by their names, were to be pickled."""
    for name, part in parts.items():
        own = _error_of(part)
        if own is not None:
            return (
                f"{name} can't be pickled: {own}. Use functions and classes of a module, make locks and files"
                " in the worker, where they are first used, and leave them out in __getstate__; or pass"
                " multiprocessing_context='fork', which pickles nothing."
            )
    return f"{', '.join(parts)} can't be pickled together, though each can by itself: {error}"


def _error_of(value: Any) -> Exception | None:
    try:
        with open(os.devnull, "wb") as nowhere:
            _Pickler(nowhere, lambda buffer: False).dump(value)  # noqa: ARG005  (its buffers are dropped)
    except Exception as error:
        return error
    return None
