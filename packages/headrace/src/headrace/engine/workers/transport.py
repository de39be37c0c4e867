"""Batches on their way from worker processes: small messages through a socket, large arrays in shared memory.

The shared memory has no name (`memfd_create`): the kernel frees it with the last process that has it mapped,
so that neither a kill nor an abandoned epoch leaves anything behind, and the size of /dev/shm doesn't matter.
Each large array of a batch lies in a segment of its own. When the user has dropped the array, the worker is
told, and writes a later batch to the segment; a segment is never written while anybody holds it. Workers
that are forked write to segments of former ones.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import socket
import struct
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace._native.deferred import Piece, piece_at, render_pieces
from headrace.engine.slots import is_plain
from headrace.errors import ConfigError
from headrace.records import DeferralCounts

Bytes = npt.NDArray[np.uint8]

INLINE_NBYTES = 8192  # of a pickle; a longer one lies in a segment
SEGMENT_NBYTES = 1 << 16  # smaller arrays are part of the pickle
MAX_SEGMENTS = 200  # of a batch; Linux passes up to 253 file descriptors with a message
READ_NBYTES = 1 << 16
_LENGTH = struct.Struct("!I")

ON_DEVICE = (
    "a worker process made a tensor on {device}. Worker processes hand batches over in shared memory of the"
    " host; a device's memory can't be handed over safely, and each process would take a share of it. Return"
    " CPU tensors from the dataset and collate_fn, and pass device={device!r} to headrace.DataLoader, which"
    " moves whole batches; or use worker_kind='thread'."
)
OUT_OF_MEMORY = (
    "there is no memory for a batch: {nbytes:,} bytes of shared memory can't be allocated ({reason}). Use"
    " fewer workers, a smaller prefetch_factor or smaller batches."
)

_forks = 0  # of this process; a child that was forked sees what its parent held at that time


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_parent=_count_fork)


class Segment:
    """Shared memory, mapped by this process as long as this object or an array in it lives. The caller closes
    its `file`; `number` is its name between the worker that made it and its parent."""

    def __init__(self, number: int, nbytes: int, file: int) -> None:
        self.number = number
        self.nbytes = nbytes
        self.pid = os.getpid()
        self.forks = _forks  # of this process when the memory was handed out last
        # Python's own mmap would keep a descriptor open for each batch that the user holds.
        self.bytes: Bytes = torch.from_file(
            f"/proc/self/fd/{file}", shared=True, size=nbytes, dtype=torch.uint8
        ).numpy()
        self.address = int(self.bytes.__array_interface__["data"][0])
        self._loan: weakref.ref[Loan] | None = None

    @property
    def lent(self) -> bool:
        """True if an array that `lend` gave is still in use."""
        return self._loan is not None and self._loan() is not None

    @property
    def forked(self) -> bool:
        """True if a process was forked since the memory was handed out: that may use it, too."""
        return self.forks != _forks

    def lend(self, nbytes: int, ended: Callable[[Segment, bool], None] | None = None) -> Bytes:
        """The first `nbytes` of the memory: uint8 [nbytes]. When nothing uses the array any more, `ended` is
        called with the segment and whether its memory may be written again: not if a process was forked
        meanwhile, as that has the array, too."""
        loan = Loan(self, nbytes, ended)
        self._loan = weakref.ref(loan)
        return np.asarray(loan)


class Loan:
    """The base of all arrays that lie in a segment; lives as long as one of them."""

    def __init__(self, segment: Segment, nbytes: int, ended: Callable[[Segment, bool], None] | None) -> None:
        self._segment = segment
        self._ended = ended
        self._forks = _forks
        self._pid = os.getpid()
        place = (segment.address, False)
        self.__array_interface__ = {"data": place, "shape": (nbytes,), "typestr": "|u1", "version": 3}

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:  # `os` is gone if Python is ending
        if self._ended is not None and getpid() == self._pid:
            self._ended(self._segment, self._forks == _forks)


def allocate(nbytes: int, name: str) -> int:
    """A file descriptor of new memory of that size. Whoever looks at a process's maps sees `name` there.
    Raises MemoryError if there is none: a write to memory that wasn't allocated would end the process."""
    file = os.memfd_create(name)
    try:
        os.posix_fallocate(file, 0, nbytes)
    except OSError as error:
        os.close(file)
        raise MemoryError(OUT_OF_MEMORY.format(nbytes=nbytes, reason=error.strerror)) from error
    return file


@dataclass
class Message:
    """The answer of a worker to a request."""

    number: int  # of the request
    failed: bool  # whether it is an error rather than a batch
    pickled: bytes | None  # or None if the pickle lies in the first of `places`
    places: Sequence[tuple[int, int]]  # (segment, size in bytes) of each large part
    new: Sequence[tuple[int, int]]  # the same of segments that the parent doesn't know yet; with files
    dropped: Sequence[int]  # numbers of segments that the worker won't use again
    ended: bool = False  # whether the worker's `IterableDataset` has ended, and there is no batch
    forked: bool = False  # whether the worker has forked a process, which may use its segments later on
    deferral: DeferralCounts | None = None  # how the samples of a worker's first batch were made
    # Nanoseconds that the dataset and collation took, and those of what was deferred, and of packing.
    made_ns: int = 0
    packed_ns: int = 0

    @property
    def nbytes(self) -> int:
        """Memory that the batch takes, in bytes."""
        return len(self.pickled or b"") + sum(nbytes for _, nbytes in self.places)


class Outbox:
    """Writes batches to segments, in the worker that makes them: at first to those that are `spare`, numbered
    from 0 on, which the parent has, too. In the maps of a process segments have a `name`."""

    def __init__(self, name: str, spare: Sequence[Segment] = ()) -> None:
        self._name = name
        self._next = len(spare)
        self._taken: dict[int, Segment] = {}  # by address: handed to collation, not sent yet
        self._sent: dict[int, Segment] = {}  # by number: the parent has them
        self._free = list(spare)  # unused for the longest time first
        self._new: dict[int, int] = {}  # file descriptors that the parent has yet to get, by number
        self._dropped: list[int] = []
        self._largest = 0  # batch, in bytes
        self._forks = _forks

    def take(self, nbytes: int) -> Bytes | None:
        """Memory for one array of a batch, uint8 [nbytes]; what lies at its start is sent without a copy.
        None if the array is too small for that, or the batch has as many segments as it may have."""
        if nbytes < SEGMENT_NBYTES:
            return None
        self._reclaim()
        if len(self._taken) >= MAX_SEGMENTS:
            return None
        segment = self._unused(nbytes)
        self._taken[segment.address] = segment
        return segment.lend(nbytes)

    def take_back(self, returned: Sequence[int], retired: Sequence[int]) -> None:
        """The parent's arrays in the segments `returned` are gone; `retired` are not to be written again."""
        for number in returned:
            segment = self._sent.pop(number)
            # Code of the user's may have kept the batch here: never to be written again.
            if segment.lent or segment.forked:
                self._dropped.append(number)
            else:
                self._free.append(segment)
        for number in retired:
            del self._sent[number]

    def pack(
        self, number: int, value: Any, *, failed: bool = False, ended: bool = False
    ) -> tuple[Message, list[int]]:
        """The message that brings `value`, and files to send with it (and to close then).

        Raises:
            ConfigError: a tensor lies on a device.
            Exception: whatever pickling raises.
        """
        places: list[tuple[Segment, int]] = []
        try:
            pickled: bytes | None = self._pickle(value, places)
            assert pickled is not None
            if len(pickled) > INLINE_NBYTES:
                segment = self._unused(len(pickled))
                segment.bytes[: len(pickled)] = np.frombuffer(pickled, np.uint8)
                places.insert(0, (segment, len(pickled)))
                pickled = None
        except BaseException:
            unsent = {segment.number: segment for segment, _ in places if segment.address not in self._taken}
            self._free += unsent.values()
            raise
        for segment, _ in places:
            self._taken.pop(segment.address, None)
            self._sent[segment.number] = segment
        sent = [(segment.number, nbytes) for segment, nbytes in places]
        self._largest = max(self._largest, sum(nbytes for _, nbytes in sent))
        self._sweep()
        new = [(n, self._sent[n].nbytes) for n in dict(sent) if n in self._new]
        dropped, self._dropped = self._dropped, []
        forked = self._forks != _forks
        message = Message(number, failed, pickled, sent, new, dropped, ended, forked)
        return message, [self._new.pop(n) for n, _ in new]

    def _pickle(self, value: Any, places: list[tuple[Segment, int]]) -> bytes:
        placed: dict[tuple[int, int], tuple[Segment, int]] = {}
        late = _LateStorages(self.take)

        def place(buffer: pickle.PickleBuffer) -> bool:
            """Returns whether the buffer is to stay within the pickle."""
            content = np.frombuffer(buffer.raw(), np.uint8)
            if content.nbytes < SEGMENT_NBYTES or len(places) >= MAX_SEGMENTS:
                return True
            key = (int(content.__array_interface__["data"][0]), content.nbytes)
            if key not in placed:
                segment = self._taken.get(key[0])
                if segment is None or segment.nbytes < content.nbytes:
                    segment = self._unused(content.nbytes)
                    np.copyto(segment.bytes[: content.nbytes], content)
                placed[key] = (segment, content.nbytes)
            places.append(placed[key])
            return False

        stream = io.BytesIO()
        _BatchPickler(stream, place, late.bytes_of).dump(value)
        late.render()
        return stream.getvalue()

    def _unused(self, nbytes: int) -> Segment:
        for i in range(len(self._free) - 1, -1, -1):
            if nbytes <= self._free[i].nbytes <= nbytes + nbytes // 4 + SEGMENT_NBYTES:
                self._free[i].forks = _forks
                return self._free.pop(i)
        step = max(SEGMENT_NBYTES, 1 << max(0, nbytes.bit_length() - 4))
        size = -(-nbytes // step) * step
        number, self._next = self._next, self._next + 1
        file = allocate(size, f"{self._name}-{number}")
        self._new[number] = file
        return Segment(number, size, file)

    def _reclaim(self) -> None:
        """Takes back what was neither sent nor kept."""
        for address, segment in list(self._taken.items()):
            if not segment.lent:
                del self._taken[address]
                if segment.forked:
                    self._drop(segment)
                else:
                    self._free.append(segment)

    def _sweep(self) -> None:
        """Reclaims memory, and gives back what isn't needed."""
        self._reclaim()
        while sum(segment.nbytes for segment in self._free) > 3 * self._largest:
            self._drop(self._free.pop(0))

    def _drop(self, segment: Segment) -> None:
        """Gives the memory back; the next message says so to the parent, if that has it, too."""
        file = self._new.pop(segment.number, None)
        if file is None:
            self._dropped.append(segment.number)
        else:
            os.close(file)


class Inbox:
    """The segments of one worker, as its parent has them, with those that it is given when it starts."""

    def __init__(self, spare: Sequence[Segment] = ()) -> None:
        self._segments = {segment.number: segment for segment in spare}
        self._used: set[int] = set()  # numbers of those that batches lie in, as far as the worker knows
        self._forked = False  # whether a process that the worker has forked may use them
        # Appended to by whichever thread drops a batch.
        self._returned: deque[int] = deque()
        self._retired: deque[int] = deque()

    def register(self, message: Message, files: Sequence[int]) -> None:
        """Maps the new segments of a message that has come, and closes their files."""
        for (number, nbytes), file in zip(message.new, files, strict=True):
            try:
                self._segments[number] = Segment(number, nbytes, file)
            finally:
                os.close(file)
        for number in message.dropped:
            self._segments.pop(number, None)
        self._used.update(number for number, _ in message.places)
        self._forked |= message.forked

    def load(self, message: Message) -> Any:
        """The value, its large arrays in shared memory. Raises whatever unpickling raises."""
        pickled: Any = message.pickled
        places = list(message.places)
        if pickled is None:
            number, nbytes = places.pop(0)
            pickled = self._segments[number].bytes.data[:nbytes]
        arrays: dict[int, Bytes] = {}
        for number, _ in places:
            if number not in arrays:
                segment = self._segments[number]
                arrays[number] = segment.lend(segment.nbytes, self._ended)
        buffers = [arrays[number].data[:nbytes] for number, nbytes in places]
        try:
            return pickle.loads(pickled, buffers=buffers)
        finally:
            if message.pickled is None:
                self._returned.append(message.places[0][0])

    def discard(self, message: Message) -> None:
        """Gives the segments of a message back that nobody wants."""
        self._returned.extend({number for number, _ in message.places})

    def ended(self) -> tuple[list[int], list[int]]:
        """Segments to tell the worker of: those that it may write again, and those that it may not."""
        returned, retired = _emptied(self._returned), _emptied(self._retired)
        for number in retired:
            self._segments.pop(number, None)
        self._used.difference_update(returned, retired)
        return returned, retired

    def unused(self) -> list[Segment]:
        """The segments that may be written again, once the worker has ended."""
        self.ended()
        if self._forked:
            return []
        return [segment for number, segment in self._segments.items() if number not in self._used]

    def _ended(self, segment: Segment, reusable: bool) -> None:
        (self._returned if reusable else self._retired).append(segment.number)


def _emptied(items: deque[int]) -> list[int]:
    return [items.popleft() for _ in range(len(items))]


class _LateStorages:
    """The storages of a batch that nobody has touched, each with the memory that it is to be made in."""

    def __init__(self, take: Callable[[int], Bytes | None]) -> None:
        self._take = take
        self._found: dict[int, tuple[Piece, Bytes]] = {}  # by address

    def bytes_of(self, storage: torch.UntypedStorage) -> Bytes:
        """The same as `storage_bytes`, or memory to which `render` will write them."""
        address = storage.data_ptr()
        if address not in self._found:
            piece = piece_at(address) if address else None
            whole = piece is not None and (piece.address, piece.nbytes) == (address, storage.nbytes())
            memory = self._take(piece.nbytes) if piece is not None and whole else None
            if piece is None or memory is None:
                return storage_bytes(storage)
            self._found[address] = piece, memory
        return self._found[address][1]

    def render(self) -> None:
        """Has native code make all of them."""
        if self._found:
            pieces, memories = zip(*self._found.values(), strict=True)
            render_pieces(pieces, [memory.__array_interface__["data"][0] for memory in memories])


class _BatchPickler(ForkingPickler):
    """Pickles tensors with their memory out of band; torch's own reductions would open a file for each."""

    def __init__(
        self,
        file: io.BytesIO,
        place: Callable[[pickle.PickleBuffer], bool],
        bytes_of: Callable[[torch.UntypedStorage], Bytes],
    ) -> None:
        super().__init__(file, 5, True, place)
        self._bytes_of = bytes_of
        # By address and size: pickle writes an object once, so that tensors of one storage still share it.
        self._buffers: dict[tuple[int, int], pickle.PickleBuffer] = {}

    def _buffer_of(self, storage: torch.UntypedStorage) -> pickle.PickleBuffer:
        key = storage.data_ptr(), storage.nbytes()
        if key not in self._buffers:
            self._buffers[key] = pickle.PickleBuffer(self._bytes_of(storage).data)
        return self._buffers[key]

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.device.type not in ("cpu", "meta"):
                raise ConfigError(ON_DEVICE.format(device=str(value.device)))
            if is_plain(value):
                return reduce_tensor(value, self._buffer_of)
        if isinstance(value, torch.UntypedStorage) and value.device.type == "cpu":
            return storage_of, (self._buffer_of(value),)
        return NotImplemented


def storage_bytes(storage: torch.UntypedStorage) -> Bytes:
    """The memory of a storage: uint8 [nbytes]."""
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()


def reduce_tensor(
    tensor: torch.Tensor, buffer_of: Callable[[torch.UntypedStorage], pickle.PickleBuffer]
) -> tuple[Any, ...]:
    """For pickle, the memory out of band: all of the tensor's storage, so that those that share it still do;
    but of a small part of a large storage only that part."""
    dtype, size, stride = tensor.dtype, tuple(tensor.size()), tensor.stride()
    if tensor.numel() == 0:
        return _empty, (dtype, size, stride)
    storage = tensor.untyped_storage()
    start = tensor.storage_offset() * dtype.itemsize
    span = (1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))) * dtype.itemsize
    if 2 * span < storage.nbytes():
        buffer = pickle.PickleBuffer(storage_bytes(storage)[start : start + span].data)
        start = 0
    else:
        buffer = buffer_of(storage)
    return _tensor, (buffer, dtype, start // dtype.itemsize, size, stride)


def _empty(dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


def _tensor(
    buffer: Any, dtype: torch.dtype, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    nbytes = memoryview(buffer).nbytes // dtype.itemsize * dtype.itemsize
    flat = torch.frombuffer(buffer, dtype=torch.uint8, count=nbytes).view(dtype)
    return flat.as_strided(size, stride, offset)


def storage_of(buffer: Any) -> torch.UntypedStorage:
    """The storage on memory that `storage_bytes` gave, copied only if it can't be written."""
    if memoryview(buffer).nbytes == 0:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    if memoryview(buffer).readonly:
        buffer = bytearray(buffer)
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


class Channel:
    """One end of a socket: pickled objects, and files that go along with them.

    Writing never waits: what doesn't fit in the socket's buffer is kept, and written by `flush`. So two
    processes that write to each other can't wait for each other.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        end.setblocking(False)
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._read = bytearray()
        self._files: deque[int] = deque()

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        """True if `flush` has something to write."""
        return bool(self._unsent)

    def send(self, value: Any, files: Sequence[int] = ()) -> None:
        """Sends `value`, or as much of it as there is room for. The files are closed once they are sent."""
        content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._unsent.append((memoryview(_LENGTH.pack(len(content)) + content), list(files)))
        self.flush()

    def flush(self) -> None:
        """Writes what there is room for. Where the other end is gone, `receive` says so."""
        while self._unsent:
            content, files = self._unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(files)}i", *files))]
            try:
                written = self._socket.sendmsg([content], rights if files else [])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self._unsent.clear()
                return
            for file in files:
                os.close(file)
            if written == len(content):
                self._unsent.popleft()
            else:
                self._unsent[0] = (content[written:], [])

    def receive(self) -> tuple[list[Any], bool]:
        """Returns what has come, and whether more may come: not if the other end is closed."""
        values: list[Any] = []
        while True:
            try:
                content, ancillary, flags, _ = self._socket.recvmsg(
                    READ_NBYTES, socket.CMSG_SPACE(4 * 253), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return values, True
            except ConnectionResetError:
                return values, False
            for _, _, data in ancillary:
                self._files.extend(struct.unpack(f"{len(data) // 4}i", data))
            if flags & socket.MSG_CTRUNC:
                raise OSError(errno.EMFILE, "too many open files to receive a batch from a worker process")
            if not content:
                return values, False
            self._read += content
            while len(self._read) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(self._read)[0]
                if len(self._read) < end:
                    break
                values.append(pickle.loads(bytes(self._read[_LENGTH.size : end])))
                del self._read[:end]

    def files(self, count: int) -> list[int]:
        """The next files that have come. The caller closes them."""
        return [self._files.popleft() for _ in range(count)]

    def close(self) -> None:
        """Closes this end. The other end sees that even if a forked process has a copy of this one."""
        with suppress(OSError):  # the other end is gone
            self._socket.shutdown(socket.SHUT_RDWR)
        self.abandon()

    def abandon(self) -> None:
        """Closes this process's copy of this end."""
        for file in self._files:
            os.close(file)
        self._files.clear()
        self._socket.close()
