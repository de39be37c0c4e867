"""One epoch by the native engine: batches in order, several in flight, within a budget of bytes."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from headrace._torch_compat import default_collate_functions, default_collation_changed, pin_memory
from headrace.config import LoaderConfig
from headrace.device.postprocess import host_postprocess
from headrace.engine.error_policy import MAX_REPLACEMENTS, cause_of, name_sample
from headrace.engine.meter import Failures
from headrace.engine.native import WAIT_SLICE_MS, NativeEngine, PendingBatch
from headrace.engine.prefetch import Prefetcher
from headrace.engine.seeding import generators_kept, seed_generators
from headrace.engine.stream import BatchStream, HostBatch
from headrace.errors import printable
from headrace.order.batches import IndexBatch
from headrace.order.permutation import key_of
from headrace.plan.pointwise import with_strides_by_pixel
from headrace.plan.segments import Plan
from headrace.records import BatchKeys, SampleFailure, SampleKey

# Without a timeout: no storage takes as long for a read. Counted in slices of waiting, so that a process that
# was stopped, or a machine that slept, isn't taken for one that hangs.
STUCK_SECONDS = 600.0

# Samples that an error names.
NAMED = 3


class NativeStream(BatchStream):
    """Makes the batches of a natively planned loader, `depth` of them in flight. The engine runs the plan's
    first segment; the others are run here."""

    def __init__(
        self,
        engine: NativeEngine,
        plan: Plan,
        batches: Iterator[IndexBatch],
        config: LoaderConfig,
        depth: int,
        failures: Failures,
    ) -> None:
        self._engine = engine
        self._batches: Iterator[IndexBatch] | None = batches
        self._taken = 0
        self.depth = depth
        self._config = config
        self._failures = failures
        self._pending: deque[PendingBatch] = deque()
        self._user = plan.collate
        self._collates_first = self._user.collates_first and can_collate_first()
        self._postprocess = host_postprocess(plan)
        self._fill_ahead()

    def __next__(self) -> HostBatch:
        while True:
            self._fill()
            if not self._pending:
                if self._batches is None:
                    raise StopIteration
                self._wait_for_records()
                continue
            self._wait(self._pending[0])
            pending = self._pending.popleft()  # in a forked child another than was waited for
            self._taken += 1
            self._fill_ahead()
            self._look_ahead()
            try:
                positions, labels, targets = self._settle(pending)
            finally:
                pending.release()
            if positions or not len(pending.keys):  # a batch of skipped samples alone isn't given out
                return self._assemble(pending, positions, labels, targets)

    def close(self) -> None:
        batches, self._batches = getattr(self, "_batches", None), None
        if isinstance(batches, Prefetcher):
            batches.close()
        pending = getattr(self, "_pending", None)
        if pending:
            self._engine.abandon(list(pending))
            pending.clear()

    def ready(self) -> int:
        self._fill()
        if not self._pending:
            return int(self._batches is None)
        if self._pending[0].pid != os.getpid():
            return 0
        for count, pending in enumerate(self._pending):
            if not self._engine.poll(pending):
                return count
            if len(pending.made) < len(pending.fallback or ()):
                return count
        return len(self._pending)

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def _fill_ahead(self) -> None:
        """Without threads, no sampler is asked before the user asks for a batch, as in torch."""
        if self._engine.threads.decode_threads > 0:
            self._fill()

    def _fill(self) -> None:
        slots = self._engine.slots
        while self._batches is not None and len(self._pending) < self.depth:
            if self._pending and (slots.live + 1) * slots.nbytes > self._config.memory_budget:
                return
            if isinstance(self._batches, Prefetcher) and not self._batches.ready():
                return
            try:
                batch = next(self._batches)
            except StopIteration:
                self._batches = None
                return
            self._pending.append(self._engine.submit(batch))

    def _wait(self, pending: PendingBatch) -> None:
        timeout = self._config.timeout
        if pending.pid != os.getpid():
            self._make_again()
            pending = self._pending[0]
        begin, quiet, left = time.monotonic(), 0.0, -1
        while not self._engine.wait(pending):
            unfinished = self._engine.unfinished(pending)
            quiet = quiet + WAIT_SLICE_MS / 1000 if len(unfinished) == left else 0.0
            left = len(unfinished)
            if time.monotonic() - begin > timeout > 0 or (not timeout and quiet > STUCK_SECONDS):
                raise RuntimeError(self._timed_out(pending, unfinished, timeout or STUCK_SECONDS))

    def _timed_out(self, pending: PendingBatch, unfinished: list[int], seconds: float) -> str:
        source = self._engine.plan.source
        samples = [int(pending.keys.samples[position]) for position in unfinished[:NAMED]]
        paths = [source.path(i) for i in samples]
        places = ["" if path is None else f" ({printable(path)})" for path in paths]
        named = ", ".join(f"sample {i}{place}" for i, place in zip(samples, places, strict=True))
        more = f" and {len(unfinished) - NAMED} more" if len(unfinished) > NAMED else ""
        return (
            f"DataLoader timed out after {seconds:g} seconds, waiting for {named}{more}. If the storage"
            " hangs, fix it and ask for the batch again; if it is that slow, pass a larger timeout."
        )

    def _wait_for_records(self) -> None:
        assert isinstance(self._batches, Prefetcher)
        timeout = self._config.timeout
        if not self._batches.wait(time.monotonic() + (timeout or math.inf)):
            raise RuntimeError(f"DataLoader timed out after {timeout} seconds")

    def _make_again(self) -> None:
        """In a forked child, where the parent's threads don't exist: starts the batches in flight again."""
        keys = [pending.keys for pending in self._pending]
        self._pending = deque(self._engine.submit(IndexBatch(k.samples, k.occurrences)) for k in keys)

    def _look_ahead(self) -> None:
        # What is left to Pillow should not wait until its batch is asked for.
        for pending in self._pending:
            if not self._engine.poll(pending):
                return

    def _settle(self, pending: PendingBatch) -> tuple[list[int], npt.NDArray[np.int64], dict[int, Any]]:
        """Puts Pillow's samples in their places, and asks for the targets. Returns positions that hold a
        sample, the labels of all, and the targets by position, none if labels stay as they are."""
        transform, fallback = self._user.target_transform, pending.fallback or []
        labels = self._engine.plan.source.labels[pending.keys.samples]
        targets: dict[int, Any] = {}
        lost = set()
        with generators_kept() if transform is not None else nullcontext():
            for position in fallback if transform is None else range(len(pending.keys)):
                key = pending.keys[position]
                try:
                    if isinstance(pending.made.get(position), BaseException):
                        raise pending.made.pop(position)  # its traceback refers to `pending`
                    if position in pending.made:
                        pending.images[position], labels[position] = pending.made[position]
                    if transform is not None:
                        targets[position] = self._target(key, labels[position])
                except Exception as error:
                    path = self._engine.plan.source.path(key.sample)
                    if self._config.on_error == "raise":
                        name_sample(error, key.sample, path)
                        raise
                    skip = self._config.on_error == "skip"
                    if skip or not self._replace(pending, position, labels, targets):
                        lost.add(position)
                    action = "skipped" if position in lost else "replaced"
                    self._failures.add(SampleFailure(key.sample, path, cause_of(error), action))
        return [i for i in range(len(pending.keys)) if i not in lost], labels, targets

    def _replace(
        self,
        pending: PendingBatch,
        position: int,
        labels: npt.NDArray[np.int64],
        targets: dict[int, Any],
    ) -> bool:
        plan, key = self._engine.plan, pending.keys[position]
        size = len(plan.source)
        for step in range(1, min(MAX_REPLACEMENTS, size - 1) + 1):
            other = key._replace(sample=(key.sample + step) % size)
            try:
                image, label = self._engine.pillow_sample(other)
                if self._user.target_transform is not None:
                    targets[position] = self._target(other, label)
            except Exception:
                continue  # bad too; if it is asked for by itself, it is recorded
            pending.images[position], labels[position] = image, label
            pending.keys.samples[position] = other.sample
            return True
        return False

    def _target(self, key: SampleKey, label: Any) -> Any:
        """Applies the user's target_transform to a label, seeded as in `headrace.engine.error_policy`."""
        assert self._user.target_transform is not None
        seed_generators(key_of(*key))
        return self._user.target_transform(int(label))

    def _assemble(
        self,
        pending: PendingBatch,
        positions: list[int],
        labels: npt.NDArray[np.int64],
        targets: dict[int, Any],
    ) -> HostBatch:
        user, keys, images = self._user, pending.keys, pending.images
        with self._engine.meter.timed("collate", len(positions)):
            if len(positions) < len(keys):
                keys, images, labels = keys.at(positions), images[positions], labels[positions]
            if self._postprocess is not None:
                images = self._postprocess.images(images, keys)
            own = user.target_transform is not None
            changed = [targets[position] for position in positions] if own else labels.tolist()
            if user.collate is not None and not (self._collates_first and positions):
                if user.by_pixel:
                    images = with_strides_by_pixel(images)
                samples = [image.as_subclass(user.sample_type) for image in images.unbind()]
                batch = self._collate(list(zip(samples, changed, strict=True)), keys)
            else:
                collated: Any = torch.from_numpy(labels)
                if own:  # in tuples, as torch collates them: strings come as a tuple
                    collated = default_collate([(target,) for target in changed])[0]
                batch = [images, self._pin(collated)]
                if user.collate is not None:
                    batch = self._collate(as_samples(batch), keys)
        times = pending.submitted_ns, pending.made_ns
        return HostBatch(batch, len(positions), self._taken, keys=keys, times=times)

    def _collate(self, samples: list[Any], keys: BatchKeys) -> Any:
        """Applies the user's collate_fn, seeded as in `headrace.engine.error_policy`."""
        collate = self._user.collate
        assert collate is not None
        with generators_kept():
            if len(keys):
                seed_generators(key_of(*keys[0]))
            return self._pin(collate(samples))

    def _pin(self, data: Any) -> Any:
        # Tensors that are pinned already are handed through.
        if not self._engine.slots.pinned:
            return data
        return pin_memory(data)


class _Collated(NamedTuple):
    """In place of a list's samples: what torch's `default_collate` would make of them."""

    batch: list[Any]


def can_collate_first() -> bool:
    """Returns whether `default_collate` can be given batches that are collated already."""
    return bool(default_collate_functions()) and not default_collation_changed()


def as_samples(batch: list[Any]) -> list[Any]:
    """Makes samples that `default_collate` collates to `batch`."""
    functions = default_collate_functions()
    functions[_Collated] = lambda samples, *, collate_fn_map=None: samples[0].batch  # noqa: ARG005
    return [_Collated(batch)]
