"""What the user asked of a loader, as its parts see it: arguments, and what follows from them alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, TensorDataset, default_convert

from headrace._machine import usable_cores
from headrace.device.place import pinning_helps
from headrace.engine.meter import Failures, Meter
from headrace.engine.runtime import Runtime
from headrace.engine.stream import has_state
from headrace.errors import ConfigError
from headrace.loader.tuning import SelfTuning
from headrace.options import LeftOpen, OnError, OnWorkerDeath, WorkerKind
from headrace.order.batches import SampledBatches, StreamBatches
from headrace.order.progress import Batches
from headrace.order.sampling import OwnSamplers, wrapped_samplers
from headrace.order.shard import Remainder, Shard, detect_rank
from headrace.plan import Plan, explain, make_plan
from headrace.plan.planner import with_batch_transform

T_co = TypeVar("T_co", covariant=True)


class Asked(TorchDataLoader[T_co]):
    """torch's loader with Headrace's arguments; see `headrace.DataLoader` for what each means."""

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
    lazy: bool
    device: torch.device | None
    batch_transform: Callable[..., Any] | None
    tuning: SelfTuning
    _runtime: Runtime
    _own_samplers: OwnSamplers

    @property
    def workers_given(self) -> int | None:
        """`num_workers`; None where the user left it open."""
        return None if isinstance(self.num_workers, LeftOpen) else self.num_workers

    @property
    def prefetch_factor_given(self) -> int | None:
        """`prefetch_factor`; None where the user left it open."""
        return None if isinstance(self.prefetch_factor, LeftOpen) else self.prefetch_factor

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
        return self.batch_sampler is not None

    @property
    def samples_of_a_batch(self) -> int:
        """As far as it is known: a batch sampler of the user's own need not say how large its batches are."""
        for sampler in wrapped_samplers(self.batch_sampler):
            size = getattr(sampler, "batch_size", None)
            if isinstance(size, int):
                return max(1, size)
        return self.batch_size or 1

    def plan(self) -> Plan:
        """Who runs what. Made for every epoch: a user may change the dataset's transform between epochs."""
        plan = make_plan(self.dataset, **self.plan_options())
        if self.batch_transform is None:
            return plan
        return with_batch_transform(plan, self.batch_transform, self.device)

    def no_workers(self, plan: Plan) -> str:
        """Why nobody calls `worker_init_fn`, though the user passed one and asked for workers; or ""."""
        if self.worker_init_fn is None or self.num_workers == 0:
            return ""
        on_threads = self.worker_kind == "thread" and not isinstance(self.dataset, IterableDataset)
        by = "threads" if on_threads and plan.head is None else ""
        by = by if plan.runs_python else "native code"
        return f"samples are made by {by}, and there are no worker processes" if by else ""

    def plan_options(self) -> dict[str, Any]:
        """What the plan depends on beside the dataset: arguments of `make_plan`."""
        return {
            "batch_size": 1 if self.batched else None,
            "collate_fn": None
            if not self.batched and self.collate_fn is default_convert
            else self.collate_fn,
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
        """Of an epoch that would start now.

        Raises:
            ConfigError: they can't be shared among ranks.
        """
        if isinstance(self.dataset, IterableDataset):
            if self.rank not in (None, "auto"):
                raise ConfigError(
                    f"rank ({self.rank!r}): the epoch can't be shared among ranks with an IterableDataset,"
                    " which must do that itself. rank='auto' leaves that to it."
                )
            own = self._own_samplers.are_followed(self.sampler, self.batch_sampler)
            return StreamBatches(self.num_workers, own and has_state(self.dataset))
        rank, world_size = self._place()
        shard = Shard(rank, world_size, remainder=self.remainder)
        batches = self._own_samplers.batches(self.sampler, self.batch_sampler, self._samples(), shard)
        if self.rank is not None and isinstance(batches, SampledBatches):
            self._own_samplers.check_shareable(batches, self.rank)
        return batches

    def _place(self) -> tuple[int, int]:
        if self.rank == "auto":
            return detect_rank()
        return (0, 1) if self.rank is None else (self.rank, self.world_size or 1)

    def _generators(self) -> list[torch.Generator]:
        holders = [self, self.sampler, *wrapped_samplers(self.batch_sampler)]
        found = [getattr(holder, "generator", None) for holder in holders]
        return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())

    def _samples(self) -> int:
        try:
            return len(self.dataset)  # type: ignore[arg-type]
        except TypeError:
            return 0


def workers_asked(given: int | str, dataset: Any) -> int:
    """The attribute `num_workers` for that argument."""
    if given == "auto" or isinstance(given, LeftOpen):
        in_this_process = isinstance(dataset, (IterableDataset, TensorDataset))
        return LeftOpen(0 if in_this_process else usable_cores())
    if isinstance(given, bool) or not isinstance(given, int):
        raise ConfigError(f"num_workers ({given!r}) must be 'auto' or an int, 0 or more.")
    return given


def pinning_asked(given: bool | str) -> bool:
    """The attribute `pin_memory` for that argument."""
    if given == "auto":
        return pinning_helps()
    if not isinstance(given, bool):
        raise ConfigError(f"pin_memory ({given!r}) must be 'auto', True or False.")
    return given and pinning_helps()
