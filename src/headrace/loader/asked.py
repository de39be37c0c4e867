"""What the user asked of a loader, as its parts see it: arguments, and what follows from them alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from headrace.engine.meter import Failures, Meter
from headrace.engine.runtime import Runtime
from headrace.engine.stream import has_state
from headrace.loader.tuning import SelfTuning
from headrace.options import OnError, OnWorkerDeath, WorkerKind
from headrace.order import Order, Sequential, Shuffled
from headrace.order.batches import OrderedBatches, SampledBatches, StreamBatches
from headrace.order.progress import Batches
from headrace.order.shard import Remainder, Shard, detect_rank
from headrace.plan.explain import explain
from headrace.plan.physical import Plan, make_plan, with_batch_transform


class Asked(TorchDataLoader[Any]):
    """torch's loader with Headrace's arguments; see `headrace.DataLoader` for what each means.

    Attributes:
        workers_given, prefetch_factor_given: None where the user left them open.
        tuning: what is made of that.
    """

    memory_budget: int
    on_error: OnError
    seed: int | None
    dtype: torch.dtype | None
    memory_format: torch.memory_format
    decoder: str
    rank: int | Literal["auto"] | None
    world_size: int | None
    remainder: Remainder
    worker_kind: WorkerKind
    on_worker_death: OnWorkerDeath
    workers_given: int | None
    prefetch_factor_given: int | None
    device: torch.device | None
    batch_transform: Callable[..., Any] | None
    tuning: SelfTuning
    _runtime: Runtime
    _given_collate: Callable[[list[Any]], Any] | None
    _given_sampler: Any
    _by_batches: bool
    _shuffle: bool

    @property
    def meter(self) -> Meter:
        """Counts what is done."""
        return self._runtime.meter

    @property
    def failures(self) -> Failures:
        """Records of samples that were skipped or replaced."""
        return self._runtime.failures

    @property
    def batched(self) -> bool:
        """Whether samples are collated to batches."""
        return bool(self._auto_collation)

    @property
    def samples_of_a_batch(self) -> int:
        """As far as it is known: a batch sampler of the user's own need not say how large its batches are."""
        size = self.batch_size or getattr(self.batch_sampler, "batch_size", None)
        return size if isinstance(size, int) else 1

    def plan(self) -> Plan:
        """Who runs what. Made for every epoch: a user may change the dataset's transform between epochs."""
        plan = make_plan(self.dataset, **self.plan_options())
        if self.batch_transform is None:
            return plan
        return with_batch_transform(plan, self.batch_transform, self.device)

    def plan_options(self) -> dict[str, Any]:
        """What the plan depends on beside the dataset: arguments of `make_plan`."""
        return {
            "batch_size": 1 if self._auto_collation else None,
            "collate_fn": self._given_collate,
            "dtype": self.dtype,
            "memory_format": self.memory_format,
            "device": self.device,
            "split": self.worker_kind != "thread",
        }

    def what(self) -> str:
        """Dataset, plan and batch size in words: what settings that were found are good for."""
        return f"{explain(self.plan())}\nbatches of {self.samples_of_a_batch}"

    def batches_that_fit(self, nbytes: int) -> int:
        """Batches of `nbytes` bytes that may be in flight beside one that the user holds."""
        return max(1, self.memory_budget // max(1, nbytes) - 1)

    def _batches(self) -> Batches:
        if isinstance(self.dataset, IterableDataset):
            return StreamBatches(self.num_workers, has_state(self.dataset))
        order = self._order()
        if order is not None:
            rank, world_size = self._place()
            shard = Shard(rank, world_size, self.batch_size or 1, self.drop_last, self.remainder)
            return OrderedBatches(order, shard)
        source: Any = self.batch_sampler if self._by_batches else self.sampler
        return SampledBatches(source, self._samples(), self.batch_size, self.drop_last, self._by_batches)

    def _order(self) -> Order | None:
        """Ours; None: the user's sampler, batch sampler or generator decides."""
        if isinstance(self._given_sampler, Order):
            return self._given_sampler
        if self._given_sampler is not None or self._by_batches:
            return None
        if not self._shuffle:
            return Sequential(len(self.dataset))  # type: ignore[arg-type]  # torch would ask it too
        return Shuffled(len(self.dataset)) if self.generator is None else None  # type: ignore[arg-type]

    def _place(self) -> tuple[int, int]:
        if self.rank == "auto":
            return detect_rank()
        return (0, 1) if self.rank is None else (self.rank, self.world_size or 1)

    def _generators(self) -> list[torch.Generator]:
        holders = [self, self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None)]
        found = [getattr(holder, "generator", None) for holder in holders]
        return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())

    def _samples(self) -> int:
        try:
            return len(self.dataset)  # type: ignore[arg-type]
        except TypeError:
            return 0
