"""Batches on their way to a device: copied on a stream of their own, overlapped with the training step.

Who may touch which memory until when is argued in docs/hazards.md; each rule there names the line here that
keeps it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from headrace.device.place import resolve_device
from headrace.device.structure import leaves, map_leaves, own_move, tensors, total_nbytes
from headrace.records import BatchKeys

# Batches that are sent before they are asked for. One would do if every batch were there in time; the second
# covers one that is late.
AHEAD = 2

Step = Callable[[Any, BatchKeys | None], Any]


@dataclass(eq=False, slots=True)
class SentBatch:
    """A batch on its way; to be given to `DevicePrefetcher.receive` once."""

    data: Any  # its tensors on the device; what `late` names is still where it was
    keys: BatchKeys | None
    ready: torch.Event | None = None  # happens when `data` is whole, or None if it is already
    made: list[Any] = field(default_factory=list)  # what has memory that belongs to another stream
    late: dict[int, Any] = field(default_factory=dict)  # leaves, by id, to be moved on the consumer's stream


@dataclass(frozen=True, eq=False)
class _Flight:
    """Copies that may still be running: `host` must live until `end`; without `begin` they aren't timed."""

    host: Any
    begin: torch.Event | None
    end: torch.Event


class DevicePrefetcher:
    """Copies batches to `device`, any number ahead of the consumer, one thread at a time.

    On CUDA, ROCm and XPU copies run on a side stream, and nothing here waits for the device. On the CPU
    tensors stay as they are.

    Args:
        device: None if batches stay where they were made; without an index the current accelerator.
        prepare: what is left to do to the batch on the device, by us, on the side stream. There it may read
            the tensors of the batch and those that it made itself, no others.
        finish: the same by the user: called by `receive`, on the consumer's stream.

    Attributes:
        idle: whether there is nothing to do to any batch.

    Raises:
        ConfigError: the device isn't there; see `place.check_device`.
    """

    def __init__(
        self,
        device: str | torch.device | None,
        prepare: Step | None = None,
        finish: Step | None = None,
    ) -> None:
        self.device = resolve_device(device)
        self._moves = device is not None
        self._prepare = prepare
        self._finish = finish
        on_cpu = self.device.type == "cpu"
        self._stream = None if on_cpu else torch.Stream(device=self.device)
        self.ahead = 0 if on_cpu else AHEAD
        self.idle = on_cpu and not self._moves and prepare is None and finish is None
        self._flights: deque[_Flight] = deque()
        self.copied_bytes = 0  # of tensors that weren't there already
        self._copy_seconds = 0.0
        self._pid = os.getpid()

    @property
    def copy_seconds(self) -> float:
        """Device time of the copies that are known to be over; 0 on the CPU."""
        self._land()
        return self._copy_seconds

    def send(self, batch: Any, keys: BatchKeys | None = None) -> SentBatch:
        """Starts to copy `batch`. Pinned tensors are copied while Python continues; others are read first."""
        if self._stream is None:
            if self._moves:
                batch = map_leaves(batch, lambda leaf: self._copied(leaf, non_blocking=False))
            return SentBatch(batch if self._prepare is None else self._prepare(batch, keys), keys)
        self._land()
        sent = SentBatch(batch, keys)
        user = torch.accelerator.current_stream(self.device)
        with self._stream:
            begin, end = self._event(timed=True), self._event(timed=True)
            kept = [*leaves(batch), *tensors(batch)]  # objects may move in place, and drop what they held
            begin.record()
            try:
                sent.data = map_leaves(batch, lambda leaf: self._begin(leaf, sent))
            finally:  # if a leaf couldn't be moved, copies of others may be running
                end.record()
                self._flights.append(_Flight(kept, begin, end))
            sent.ready = end
            there = self._wait_for_others(kept, user)
            if self._prepare is not None:
                sent.data = self._prepare(sent.data, keys)
            if there or self._prepare is not None:
                sent.ready = self._event()
                sent.ready.record()
        sent.made += [*filter(_is_plain, there), *self._made_since(kept, sent.data)]
        return sent

    def receive(self, sent: SentBatch) -> Any:
        """The batch, whole as far as the current stream is concerned: what is queued there from now on
        comes after the copies, and the memory isn't used again before it."""
        if sent.ready is not None:
            stream = torch.accelerator.current_stream(self.device)
            stream.wait_event(sent.ready)
            for each in sent.made:
                each.record_stream(stream)
            if sent.late:
                self._move_late(sent, stream)
            self._land()
        return sent.data if self._finish is None else self._finish(sent.data, sent.keys)

    def close(self) -> None:
        """Waits until no copy reads host memory any more; in a forked process, which can't know, for none."""
        if not self._flights or os.getpid() != self._pid:
            return
        for flight in self._flights:
            flight.end.synchronize()
        self._land()

    def _wait_for_others(self, kept: list[Any], user: torch.Stream) -> list[torch.Tensor]:
        """The tensors that were on the device already, made on the `user`'s stream: the side stream may read
        them from now on, and what waits for it comes after they were made."""
        assert self._stream is not None
        on_device = {id(t): t for t in kept if isinstance(t, torch.Tensor) and t.device == self.device}
        if on_device:
            self._stream.wait_stream(user)
            for tensor in filter(_is_plain, on_device.values()):
                tensor.record_stream(self._stream)
        return [*on_device.values()]

    def _made_since(self, before: list[Any], data: Any) -> list[torch.Tensor]:
        old = set(map(id, before))
        here = (tensor for tensor in tensors(data) if tensor.device == self.device and _is_plain(tensor))
        return [tensor for tensor in here if id(tensor) not in old]

    def _begin(self, leaf: Any, sent: SentBatch) -> Any:
        """`leaf` on the device, its copy started on the side stream; itself where that can't be made safe."""
        if isinstance(leaf, torch.Tensor):
            if _is_plain(leaf) or leaf.device == self.device:
                return self._copied(leaf, non_blocking=True)
        elif hasattr(leaf, "record_stream") or _shows_its_tensors(leaf):
            moved = self._copied(leaf, non_blocking=True)
            if hasattr(moved, "record_stream"):
                sent.made.append(moved)
            return moved
        sent.late[id(leaf)] = leaf
        return leaf

    def _copied(self, leaf: Any, *, non_blocking: bool) -> Any:
        if isinstance(leaf, torch.Tensor):
            if leaf.device == self.device:
                return leaf
            self.copied_bytes += total_nbytes(leaf)
            return leaf.to(self.device, non_blocking=non_blocking)
        before = list(tensors(leaf))
        options = {} if own_move(leaf) == "blocking" else {"non_blocking": non_blocking}
        moved = leaf.to(self.device, **options)
        # Some keep tensors on the host for good: a PackedSequence its batch sizes.
        self.copied_bytes += total_nbytes(self._made_since(before, moved))
        return moved

    def _move_late(self, sent: SentBatch, stream: torch.Stream) -> None:
        with stream:
            end = self._event()
            try:
                sent.data = map_leaves(
                    sent.data,
                    lambda leaf: self._copied(leaf, non_blocking=True) if id(leaf) in sent.late else leaf,
                )
            finally:  # as in `send`
                end.record()
                self._flights.append(_Flight(sent.late, None, end))

    def _land(self) -> None:
        """Lets go of host memory whose copies are over, without waiting."""
        while self._flights and self._flights[0].end.query():
            flight = self._flights.popleft()
            if flight.begin is not None:
                self._copy_seconds += flight.begin.elapsed_time(flight.end) / 1e3

    def _event(self, *, timed: bool = False) -> torch.Event:
        return torch.Event(device=self.device, enable_timing=timed)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether `record_stream` covers all of the tensor's memory: not if it consists of several."""
    return tensor.layout is torch.strided and not hasattr(tensor, "__tensor_flatten__")


def _shows_its_tensors(leaf: Any) -> bool:
    """Returns whether the tensors of an object that moves itself can be reached from outside."""
    seen = list(tensors(leaf))
    return bool(seen) and all(map(_is_plain, seen))
