"""Batches made by a Ray cluster: the decode as a stage of Ray Data, on nodes that have processors to spare.

A sample's pixels depend on (seed, epoch, index) alone, and the order on (seed, epoch, position): whichever
node, actor or attempt makes a batch, it is the one that `headrace.DataLoader` gives. See docs/ray.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import BatchSampler, IterableDataset, default_collate

from headrace.build import StreamBuilder
from headrace.config import LoaderConfig
from headrace.device.postprocess import Postprocess
from headrace.errors import ConfigError, SampleError, require
from headrace.order import Order, Sequential, Shuffled
from headrace.order.batches import IndexBatch, StreamBatches
from headrace.order.epoch import EpochStart, Position
from headrace.order.progress import Epoch
from headrace.plan import Plan, make_plan
from headrace.plan.segments import ValueSegment

if TYPE_CHECKING:
    import ray.data

__all__ = ["Decode", "Finish", "read"]

# Positions that an actor is sent at a time, more or less: what is made again if it dies. Fewer if an
# epoch has so few that actors would be left without work.
ROWS, TASKS = 1024, 64
# Batches in flight.
DEPTH = 2
# Planning needs to know only that values are made somewhere else.
ELSEWHERE = torch.device("cuda")

Columns = dict[str, npt.NDArray[Any]]


class Decode:
    """A stage for `ray.data.Dataset.map_batches`: rows that name samples become these samples.

    It takes batches with a column `id`, int64 [n]: positions in the epoch, from 0 on, which `order` makes
    samples of; without an order, the samples themselves. It gives the samples' columns, and those that came
    with the rows.

    Args:
        dataset: map-style, as for `headrace.DataLoader`. Ray sends it to every actor.
        order: of the epoch. None (the default): sample i is at position i.
        seed, epoch: of the order and the random parameters, as in `headrace.DataLoader`.
        columns: names of a sample's parts, if it is a tuple or a single tensor; a dict has names.
        batch_size: rows are given back so many at a time, the next ones being made meanwhile. None (the
            default): as many as came.
        levels: give 8-bit levels rather than the values that `ToTensor`, `Normalize`, … make of them: a
            quarter of the bytes. Where the batches are used, `Finish` makes the same values of them.
        on_error: "raise" (the default) or "replace", as in `headrace.DataLoader`.
        threads: that decode. None (the default): one for each processor that Ray has given to the actor.

    Raises:
        ConfigError: the arguments don't fit together, or the dataset is an `IterableDataset`.

    Examples:
        >>> tens = torch.utils.data.TensorDataset(torch.arange(6) * 10)
        >>> stage = Decode(tens, columns=("value",), threads=1)
        >>> [batch["value"].tolist() for batch in stage({"id": np.array([5, 0])})]
        [[50, 0]]
    """

    def __init__(
        self,
        dataset: Any,
        *,
        order: Order | None = None,
        seed: int = 0,
        epoch: int = 0,
        columns: Sequence[str] = ("image", "label"),
        batch_size: int | None = None,
        levels: bool = False,
        on_error: str = "raise",
        threads: int | None = None,
    ) -> None:
        _check(dataset, seed, epoch, batch_size, on_error)
        self._order = order
        self._key = (seed, epoch)
        self._columns = tuple(columns)
        self._batch_size = batch_size
        self._levels = levels
        self._plan = levels_plan(dataset) if levels else make_plan(dataset)
        if levels:
            left_over(self._plan)
        threads = _processors() if threads is None else threads
        # What makes batches is kept between the calls.
        self._config = LoaderConfig(
            dataset=dataset,
            batch_sampler=BatchSampler(range(0), 1, drop_last=False),
            num_workers=0 if self._plan.native is None else threads,
            prefetch_factor=1,
            collate_fn=default_collate,
            memory_budget=sys.maxsize,
            on_error=on_error,  # type: ignore[arg-type]  # checked above
        )
        self._builder = StreamBuilder()
        self._seen = 0  # failures that were looked at

    def __call__(self, rows: Mapping[str, npt.NDArray[Any]]) -> Iterator[Columns]:
        """The samples of `rows`, in order. Raises SampleError, or what user code raised."""
        if "id" not in rows:
            raise ConfigError(f"rows need a column 'id'; there are: {', '.join(rows)}.")
        ids = np.asarray(rows["id"], dtype=np.int64)
        indices, occurrences = ids, np.zeros(len(ids), np.int64)
        if self._order is not None:
            indices, occurrences = self._order.at(ids, *self._key)
        step = self._batch_size or max(1, len(ids))
        parts = [slice(begin, begin + step) for begin in range(0, len(ids), step)]
        batches = [IndexBatch(indices[part], occurrences[part]) for part in parts]
        for part, made in zip(parts, self._made(batches), strict=True):
            kept = {name: column[part] for name, column in rows.items()}
            yield {**kept, **_as_columns(made, self._columns)}

    def _made(self, batches: Sequence[IndexBatch]) -> Iterator[Any]:
        """The batches of samples that Ray chose, in order, each with all of its samples."""
        config = self._for(max((len(batch.indices) for batch in batches), default=1))
        start = EpochStart(self._key[1], self._key, self._key, seeds_samples=True)
        epoch = Epoch(StreamBatches(0), start, Position())
        stream = self._builder.stream(config, self._plan, epoch, iter(batches))
        transfer = self._builder.transfer(config, self._plan)
        try:
            while (made := next(stream, None)) is not None:
                self._check_lost()
                yield made.data if self._levels else transfer.receive(transfer.send(made.data, made.keys))
            self._check_lost()  # batches of nothing else don't come
        finally:
            stream.close()

    def _for(self, batch_size: int) -> LoaderConfig:
        """The configuration for batches of up to so many samples: one is made while another is taken away."""
        sampler = BatchSampler(range(0), max(1, batch_size), drop_last=False)
        native = self._plan.native
        nbytes = 1 if native is None else max(1, batch_size * native.sample_nbytes)
        return replace(self._config, batch_sampler=sampler, memory_budget=(DEPTH + 1) * nbytes)

    def _check_lost(self) -> None:
        failures = self._builder.failures.records
        new, self._seen = failures[self._seen :], len(failures)
        for failure in new:
            if failure.action == "skipped":
                cause = f"{failure.cause}; nor can the samples after it, which would replace it"
                raise SampleError.at(failure.index, failure.path, cause)


class Finish:
    """Makes of the images that `levels=True` gave what the dataset's transform makes: bit for bit, on
    whatever device they are.

    Args:
        dataset: the same as the stage has, or one with the same transform.

    Raises:
        ConfigError: the transform has a RandomErasing.
    """

    def __init__(self, dataset: Any) -> None:
        left = left_over(levels_plan(dataset))
        self._rest = None if left is None else Postprocess(left)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """`images` as `iter_torch_batches` gives them, [n, channels, height, width]."""
        return images if self._rest is None else self._rest.images(images, None)


def read(
    dataset: Any,
    batch_size: int = 1,
    *,
    shuffle: bool = False,
    sampler: Order | None = None,
    drop_last: bool = False,
    seed: int = 0,
    epoch: int = 0,
    columns: Sequence[str] = ("image", "label"),
    levels: bool = False,
    on_error: str = "raise",
    threads: int | None = None,
    **stage: Any,
) -> ray.data.Dataset:
    """An epoch as a Ray dataset: the rows of `headrace.DataLoader(dataset, batch_size, …)`, in its order,
    made by actors anywhere in the cluster. With `iter_torch_batches(batch_size=batch_size)` its batches, too.

    Args:
        dataset: map-style, with a length.
        batch_size: samples that are made, and best taken, together.
        shuffle, sampler, drop_last, seed, epoch: as in `headrace.DataLoader`; `sampler` is one of
            `headrace.order`.
        columns, levels, on_error, threads: see `Decode`.
        stage: for `map_batches`, such as compute=ray.data.ActorPoolStrategy(size=8), num_cpus=1,
            resources={…}.

    Returns:
        A dataset that isn't executed yet, with `preserve_order` set. Its columns: `id`, the position in the
        epoch, and the samples' own.

    Raises:
        ConfigError: Ray isn't installed, or an argument is invalid.
    """
    data = require("ray.data", "ray")
    _check(dataset, seed, epoch, batch_size, on_error)
    if shuffle and sampler is not None:
        raise ConfigError("shuffle=True and a sampler exclude each other: the sampler is the order.")
    if sampler is not None and not isinstance(sampler, Order):
        raise ConfigError(
            f"sampler ({type(sampler).__name__}) must be one of headrace.order: actors can't share an"
            " iterator."
        )
    order = sampler
    if order is None:
        order = Shuffled(dataset) if shuffle else Sequential(dataset)
    if order.size is None:
        raise ConfigError("sampler: infinite samplers can't be used with Ray Data.")
    size = order.size // batch_size * batch_size if drop_last else order.size
    batches = -(-size // batch_size)
    rows = batch_size * max(1, min(ROWS // batch_size, batches // TASKS))
    from headrace._arrow import pa

    # Not by ray.data.range: its tasks would wait for a processor if the actors have all of them.
    blocks = [pa.table({"id": np.arange(i, min(i + rows, size))}) for i in range(0, max(1, size), rows)]
    options = {"order": order, "seed": seed, "epoch": epoch, "columns": columns, "batch_size": batch_size}
    options |= {"levels": levels, "on_error": on_error, "threads": threads}
    made: ray.data.Dataset = data.from_arrow(blocks).map_batches(
        Decode, batch_size=None, fn_constructor_args=(dataset,), fn_constructor_kwargs=options, **stage
    )
    made.context.execution_options.preserve_order = True
    return made


def levels_plan(dataset: Any) -> Plan:
    """The plan of `dataset` if values are made by whoever takes its batches."""
    return make_plan(dataset, device=ELSEWHERE)


def left_over(plan: Plan) -> ValueSegment | None:
    """The rest of the work on the images of a plan of `levels`, or None if there is none.

    Raises:
        ConfigError: it needs more than the images.
    """
    values = plan.values
    if values is not None and values.erasing is not None:
        raise ConfigError(
            "levels=True: RandomErasing writes values, which aren't made yet. Take it out of the transform"
            " and call it in the training step; or leave levels out."
        )
    return values


def _processors() -> int:
    """The number of processors that Ray has given to this actor; 1 outside of one."""
    try:
        import ray
    except ImportError:
        return 1
    if not ray.is_initialized():
        return 1
    return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))


def _check(dataset: Any, seed: int, epoch: int, batch_size: int | None, on_error: str) -> None:
    if isinstance(dataset, IterableDataset):
        raise ConfigError("dataset is an IterableDataset: a stage can only request samples by their index.")
    if not 0 <= seed < 2**64:
        raise ConfigError(f"seed ({seed}) must be 0 to 2**64 - 1.")
    if epoch < 0:
        raise ConfigError(f"epoch ({epoch}) must be 0 or more.")
    if batch_size is not None and batch_size < 1:
        raise ConfigError(f"batch_size ({batch_size}) must be 1 or more.")
    if on_error not in ("raise", "replace"):
        raise ConfigError(
            f"on_error ({on_error!r}) must be 'raise' or 'replace': every row needs its sample."
        )


def _as_columns(batch: Any, names: tuple[str, ...]) -> Columns:
    """Columns of a batch that torch's default collation has made."""
    if isinstance(batch, Mapping):
        return {str(name): _array(str(name), part) for name, part in batch.items()}
    parts = batch if isinstance(batch, (list, tuple)) else [batch]
    if hasattr(batch, "_fields"):
        names = batch._fields
    if len(parts) != len(names):
        raise ConfigError(f"a sample has {len(parts)} parts: columns ({', '.join(names)}) must name each.")
    return {name: _array(name, part) for name, part in zip(names, parts, strict=True)}


def _array(name: str, part: Any) -> npt.NDArray[Any]:
    if isinstance(part, torch.Tensor):
        if part.dtype == torch.bfloat16:
            raise ConfigError(
                f"column {name!r} is bfloat16, which NumPy and Arrow lack: cast where the batches are used."
            )
        array: npt.NDArray[Any] = part.numpy()
        return array
    if isinstance(part, (list, tuple)) and all(isinstance(item, (str, bytes, int, float)) for item in part):
        return np.asarray(part)
    raise ConfigError(
        f"column {name!r} is a {type(part).__name__}: a column is a tensor or a list of strings."
    )
