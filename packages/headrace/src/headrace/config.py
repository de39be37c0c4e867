"""The arguments of a loader: checked, and frozen while an epoch is built from them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import wraps
from operator import attrgetter
from typing import Any, Literal, ParamSpec, get_args

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from headrace.errors import ConfigError
from headrace.order.batches import length_of
from headrace.order.sampling import wrapped_samplers
from headrace.order.shard import Remainder

OnError = Literal["raise", "skip", "replace"]
WorkerKind = Literal["auto", "thread", "process"]
Resident = bool | Literal["auto"]
CHOICES = {
    "on_error": get_args(OnError),
    "worker_kind": get_args(WorkerKind),
    "remainder": get_args(Remainder),
}

P = ParamSpec("P")

# Share of the available memory that batches may take unless the user says otherwise: other processes of the
# job (one loader per GPU, up to 8 of them) and the page cache need the rest.
DEFAULT_MEMORY_SHARE = 1 / 8

# Batches in flight unless the user says otherwise. All decode threads work on one batch at a time, so that
# two already keep them busy; two more cover a training step that takes longer now and then.
DEFAULT_DEPTH = 4

# Native reads in flight once reads are seen to block; each costs a stack and a buffer.
READ_THREADS = 32

# Arguments of earlier versions, and what there is instead.
REMOVED = {
    "decoder": "set the environment variable HEADRACE_DECODERS, for example to 'pillow'",
    "on_worker_death": "a worker process that dies is always replaced, and the log names its sample",
}
RENAMED = {"lazy": "deferred"}
FORMER = frozenset((*REMOVED, *RENAMED))


class LeftOpen(int):
    """A number that the loader chose because its user left it open. It reads as any int; given to another
    loader, as Lightning does it with the attributes of one, it leaves the choice to that one again."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LoaderConfig:
    """The arguments of `headrace.DataLoader`, which says what each means.

    A loader makes one of its attributes when an epoch starts and some were set since the epoch before, so
    that what the user has changed takes effect.

    Raises:
        ConfigError: an argument is invalid.
    """

    dataset: Any
    batch_size: int | None = 1
    sampler: Any = None
    batch_sampler: Any = None
    num_workers: int = 0
    collate_fn: Any = None
    pin_memory: bool = False
    drop_last: bool = False
    timeout: float = 0.0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: torch.Generator | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory_device: str = ""
    in_order: bool = True
    memory_budget: int
    on_error: OnError = "raise"
    seed: int | None = None
    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    rank: int | Literal["auto"] | None = None
    world_size: int | None = None
    remainder: Remainder = "pad"
    worker_kind: WorkerKind = "auto"
    device: torch.device | None = None
    resident: Resident = "auto"
    batch_transform: Callable[..., Any] | None = None
    deferred: bool = True
    streamed: bool = field(init=False)  # whether the dataset is an `IterableDataset`, with its own order
    batched: bool = field(init=False)  # whether samples are collated to batches

    @classmethod
    def of(cls, loader: TorchDataLoader[Any]) -> LoaderConfig:
        """The arguments that `loader` has as its attributes now."""
        config = object.__new__(cls)  # the class itself would set each value by a call, being frozen
        vars(config).update(zip(_NAMES, _values(loader), strict=True))
        config.__post_init__()
        return config

    def __post_init__(self) -> None:
        values = vars(self)
        for name, allowed in CHOICES.items():
            if values[name] not in allowed:
                *others, last = map(repr, allowed)
                raise ConfigError(f"{name} ({values[name]!r}) must be {', '.join(others)} or {last}.")
        if self.resident != "auto" and not isinstance(self.resident, bool):
            raise ConfigError(f"resident ({self.resident!r}) must be 'auto', True or False.")
        if not isinstance(self.deferred, bool):
            raise ConfigError(f"deferred ({self.deferred!r}) must be True or False.")
        if not _is_int(self.memory_budget) or self.memory_budget < 1:
            raise ConfigError(
                f"memory_budget ({self.memory_budget!r}) must be a number of bytes, 1 or more; leave it unset"
                " for an eighth of the available memory."
            )
        if self.seed is not None and not (_is_int(self.seed) and 0 <= self.seed < 2**64):
            raise ConfigError(
                f"seed ({self.seed!r}) must be an int from 0 to 2**64 - 1, or None to draw one per epoch."
            )
        if self.batch_transform is not None and not callable(self.batch_transform):
            raise ConfigError(f"batch_transform ({self.batch_transform!r}) must be callable, or None.")
        if self.rank is not None or self.world_size is not None:
            self._check_ranks()
        values.update(
            streamed=isinstance(self.dataset, IterableDataset), batched=self.batch_sampler is not None
        )

    def _check_ranks(self) -> None:
        rank, world_size = self.rank, self.world_size
        if rank == "auto" or rank is None:
            alone = rank is None and _is_int(world_size) and world_size == 1
            if world_size is not None and not alone:
                raise ConfigError(
                    f"world_size ({world_size!r}) needs a rank from 0 to world_size - 1, not {rank!r};"
                    " rank='auto' finds both."
                )
        elif not (_is_int(rank) and _is_int(world_size) and 0 <= rank < (world_size or 0)):
            raise ConfigError(
                f"rank ({rank!r}) and world_size ({world_size!r}) must be ints with 0 <= rank < world_size,"
                " or rank='auto' alone."
            )

    @property
    def workers_given(self) -> int | None:
        """`num_workers`, or None if the user left it open."""
        return None if isinstance(self.num_workers, LeftOpen) else self.num_workers

    @property
    def prefetch_factor_given(self) -> int | None:
        """`prefetch_factor`, or None if the user left it open."""
        return None if isinstance(self.prefetch_factor, LeftOpen) else self.prefetch_factor

    @property
    def samples_of_a_batch(self) -> int:
        """Samples of a batch, as far as that is known: a batch sampler need not say how large its batches
        are."""
        for sampler in wrapped_samplers(self.batch_sampler):
            size = getattr(sampler, "batch_size", None)
            if isinstance(size, int):
                return max(1, size)
        return self.batch_size or 1

    @property
    def workers_kind(self) -> Literal["process", "thread", "caller"]:
        """The place where a Python dataset is read: processes, unless threads are asked for by name
        (each stream of an `IterableDataset` has its own process), or in the caller's own thread."""
        if self.num_workers == 0:
            return "caller"
        return "thread" if self.worker_kind == "thread" and not self.streamed else "process"

    @property
    def samples(self) -> int:
        """Length of the dataset, or 0 if it has none."""
        return length_of(self.dataset) or 0

    def depth(self, nbytes: int) -> int:
        """Batches of `nbytes` bytes that native code may have in flight, together with one that the user
        holds."""
        if self.num_workers == 0:
            return 1
        given = self.prefetch_factor_given
        wanted = DEFAULT_DEPTH if given is None else given * self.num_workers
        return max(1, min(wanted, self.memory_budget // max(1, nbytes) - 1))

    @property
    def depth_by_torch(self) -> int:
        """Batches that torch's loader asks its sampler for before they are asked for."""
        given = self.prefetch_factor_given
        return (2 if given is None else given) * self.num_workers


_NAMES = tuple(each.name for each in fields(LoaderConfig) if each.init)
_values = attrgetter(*_NAMES)


def refuses_removed(init: Callable[P, None]) -> Callable[P, None]:
    """Decorates the loader's `__init__`: it raises ConfigError for an argument that was removed, and warns of
    one that has another name now."""

    @wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        if FORMER.isdisjoint(kwargs):
            return init(*args, **kwargs)
        for name, instead in REMOVED.items():
            if name in kwargs:
                raise ConfigError(f"{name} is no argument of DataLoader any more: {instead}.")
        for name, now in RENAMED.items():
            if name in kwargs:
                text = f"DataLoader's argument {name} is called {now} now."
                warnings.warn(text, FutureWarning, stacklevel=2)
                kwargs[now] = kwargs.pop(name)
        return init(*args, **kwargs)

    return checked


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
