"""An object pickled once, for any number of new processes, which load it at the same time."""

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

from headrace.engine.unpicklable import explain_unpicklable
from headrace.errors import ConfigError

ALIGNMENT = 64
SMALL = 4096  # bytes; what is smaller isn't worth a place of its own
# multiprocessing registers these although pickle itself knows them.
PLAIN = (functools.partial, types.MethodType, types.MethodDescriptorType, types.WrapperDescriptorType)


class SharedPickle:
    """Holds `parts` in memory without a name, which is gone with the last process that has it open.

    What can only be handed to a process while it starts (locks, queues, tensors that are in shared memory
    already) goes beside it. Arrays and tensors aren't copied by the processes: each sees the same pages until
    it writes to them.

    Args:
        parts: what is pickled, by the name that an error calls it.

    Raises:
        ConfigError: a part can't be pickled; the message names the member that can't.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._stream = os.memfd_create("headrace-pickle")
        self._buffers = os.memfd_create("headrace-buffers")
        self._places: list[tuple[int, int]] = []
        try:
            with open(self._stream, "wb", closefd=False) as file:
                pickler = _Pickler(file, self._store)
                pickler.dump(tuple(parts.values()))
        except Exception as error:
            self.close()
            raise ConfigError(explain_unpicklable(parts, error, _attempt)) from error
        self._beside = pickler.beside

    def __reduce__(self) -> tuple[Any, ...]:
        # Called while a process starts, once for each.
        files = DupFd(self._stream), DupFd(self._buffers)
        return _Arrived, (*files, self._places, self._beside)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """To be called once all processes have started."""
        for name in ("_stream", "_buffers"):
            fd = self.__dict__.pop(name, None)
            if fd is not None:
                os.close(fd)

    def _store(self, buffer: pickle.PickleBuffer) -> bool:
        """pickle's buffer_callback: whether the buffer is to stay within the pickle."""
        content = buffer.raw()
        if len(content) < SMALL:
            return True
        start = -(-os.lseek(self._buffers, 0, os.SEEK_END) // ALIGNMENT) * ALIGNMENT
        self._places.append((start, len(content)))
        os.lseek(self._buffers, start, os.SEEK_SET)
        while len(content):
            content = content[os.write(self._buffers, content) :]
        return False


class _Arrived:
    """A `SharedPickle` in a process that it was handed to."""

    def __init__(self, stream: Any, buffers: Any, places: list[tuple[int, int]], beside: list[Any]) -> None:
        self._stream: int = stream.detach()
        self._buffers: int = buffers.detach()
        self._places = places
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
        if not self._places:
            return []
        whole = memoryview(mmap.mmap(self._buffers, 0, access=mmap.ACCESS_COPY))
        return [whole[start : start + size] for start, size in self._places]


class _Loading(threading.local):
    beside: Sequence[Any] = ()


_loading = _Loading()


class _Pickler(pickle.Pickler):
    def __init__(self, file: IO[bytes], store: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL, buffer_callback=store)
        self.beside: list[Any] = []

    def reducer_override(self, value: Any) -> Any:
        if _goes_beside(value):
            self.beside.append(value)
            return _from_beside, (len(self.beside) - 1,)
        if isinstance(value, torch.storage.TypedStorage):
            return _typed_storage, (value._untyped_storage, value.dtype)
        if isinstance(value, torch.UntypedStorage):
            array: Any = torch.empty(0, dtype=torch.uint8).set_(value).numpy()
            return _storage, (pickle.PickleBuffer(array),)
        return NotImplemented


def _attempt(value: Any) -> None:
    with open(os.devnull, "wb") as nowhere:
        _Pickler(nowhere, _drop).dump(value)


def _drop(buffer: pickle.PickleBuffer) -> bool:  # noqa: ARG001
    """pickle's buffer_callback: kept nowhere."""
    return False


def _goes_beside(value: Any) -> bool:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return value.device.type not in ("cpu", "meta")
    if isinstance(value, torch.UntypedStorage):
        return value.is_shared()
    if isinstance(value, torch.storage.TypedStorage):
        return False
    if kind.__module__.split(".")[0] == "multiprocessing" or kind.__module__.startswith(
        "torch.multiprocessing"
    ):
        return True
    registered = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    # What multiprocessing and others have registered for it: connections, sockets, values in shared memory.
    return kind in registered and not isinstance(value, PLAIN)


def _from_beside(index: int) -> Any:
    return _loading.beside[index]


def _typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
        wrap_storage=storage, dtype=dtype, _internal=True
    )


def _storage(buffer: Any) -> torch.UntypedStorage:
    if len(memoryview(buffer)) == 0:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    if memoryview(buffer).readonly:
        buffer = bytearray(buffer)
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
