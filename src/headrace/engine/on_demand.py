"""Batches of samples that somebody else chooses, call by call: what makes them is kept between the calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from headrace.engine.ahead import Ahead
from headrace.engine.epoch import Epoch, NativeProducer
from headrace.engine.gather import GatherProducer
from headrace.engine.guarded import Guarded, Request
from headrace.engine.native import NativeEngine
from headrace.engine.prefixed import FinishLevels, Levels, PrefixedSamples
from headrace.engine.producer import Made, Producer
from headrace.engine.python import record_failures
from headrace.engine.runtime import Runtime
from headrace.engine.seeding import Seeding
from headrace.errors import ConfigError, SampleError
from headrace.order.batches import IndexBatch
from headrace.plan import Plan, make_plan
from headrace.plan.segments import NativeSegment, ValueSegment
from headrace.sources.remote import RemoteSamples

# Batches in flight: one is being made while its forerunner is taken away.
DEPTH = 2
# Planning needs to know only that values are made somewhere else.
ELSEWHERE = torch.device("cuda")


def left_over(plan: Plan) -> ValueSegment | None:
    """What is still to be done to the images of a plan of `levels`; None: nothing.

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


def levels_plan(dataset: Any) -> Plan:
    """The plan of `dataset` where values are made by whoever takes its batches."""
    return make_plan(dataset, device=ELSEWHERE)


class OnDemand:
    """Makes batches of a map-style dataset, as `headrace.DataLoader` does by torch's default collation, in
    this process: by native threads, or by the thread that asks.

    Args:
        dataset: map-style.
        threads: for native decoding, 1 or more.
        on_error: "raise" or "replace", as for `headrace.DataLoader`.
        levels: give the images of a natively planned dataset before the table of values is looked up.

    Attributes:
        plan: who makes what.
    """

    def __init__(self, dataset: Any, *, threads: int, on_error: str, levels: bool) -> None:
        self.plan = levels_plan(dataset) if levels else make_plan(dataset)
        if levels:
            left_over(self.plan)
        self._samples = len(dataset) if hasattr(dataset, "__len__") else 0
        self._on_error = on_error
        self._threads = threads
        self._levels = levels
        self._runtime = Runtime()
        self._engine: NativeEngine | None = None
        self._seen = 0  # failures that were looked at
        self._guarded = Guarded(dataset, default_collate, on_error)
        if self.plan.head is not None:
            self._guarded = PrefixedSamples(dataset, default_collate, on_error, self.plan, decoder="auto")

    def make(self, batches: Sequence[IndexBatch], key: tuple[int, int]) -> Iterator[Any]:
        """The batches, in order, each with all of its samples.

        Args:
            batches: that are wanted.
            key: (seed, epoch) of the random parameters.

        Raises:
            SampleError: a sample can't be loaded, nor one in its place; or, where it is made by the user's
                Python, what that raised.
            ConfigError: `levels`, and a batch that they can't be had of.
        """
        for data in self._made(batches, key):
            self._check_lost()
            yield data
        self._check_lost()  # batches of nothing else don't come

    def _made(self, batches: Sequence[IndexBatch], key: tuple[int, int]) -> Iterator[Any]:
        if self.plan.native is not None:
            return self._by_native_code(self.plan.native, batches, key)
        if self.plan.gather is not None:
            return (made.data for made in _each(GatherProducer(self.plan, iter(batches), pinned=False)))
        return self._by_python(batches, key)

    def _check_lost(self) -> None:
        failures = self._runtime.failures.records
        new, self._seen = failures[self._seen :], len(failures)
        for failure in new:
            if failure.action == "skipped":
                cause = f"{failure.cause}; nor can the samples after it, which would replace it"
                raise SampleError.at(failure.index, failure.path, cause)

    def _by_native_code(
        self, plan: NativeSegment, batches: Sequence[IndexBatch], key: tuple[int, int]
    ) -> Iterator[Any]:
        runtime = self._runtime
        nbytes = max((len(batch.indices) for batch in batches), default=0) * plan.sample_nbytes
        if self._engine is None or self._engine.slots.nbytes < nbytes:
            slots = runtime.slots_for(nbytes, pinned=False, keep=DEPTH + 2)
            threads = runtime.threads_for(self._threads)
            self._engine = NativeEngine(plan, threads, slots, runtime.meter, "auto")
        coming: Iterator[IndexBatch] = iter(batches)
        if isinstance(plan.source, RemoteSamples):
            coming = Ahead(coming, plan.source)
        epoch = Epoch(*key, budget=sys.maxsize, timeout=0, on_error=self._on_error)
        producer = NativeProducer(self._engine, self.plan, coming, epoch, DEPTH, runtime.failures)
        try:
            for made in _each(producer):
                yield made.data
        finally:
            producer.close()

    def _by_python(self, batches: Sequence[IndexBatch], key: tuple[int, int]) -> Iterator[Any]:
        values = self.plan.values
        finish = None if values is None or self._levels else FinishLevels(values, self._take)
        seeding = Seeding(key, base=0, by_sample=True)
        for batch in batches:
            made = self._guarded.__getitems__(Request(batch, seeding, self._samples))
            data = record_failures(made, self._runtime.failures)
            if finish is not None:
                data = finish(data, None)
            elif values is not None:
                data = _levels(data)
            yield data

    def _take(self, nbytes: int) -> torch.Tensor:
        return self._runtime.take(nbytes, pinned=False)


def _levels(data: Any) -> Any:
    if type(data) is list and data and isinstance(data[0], Levels):
        return [data[0].images, *data[1:]]
    raise ConfigError(
        "levels=True needs pictures that are RGB and of one size after the steps that run as Python; a batch"
        " came otherwise. Leave levels out."
    )


def _each(producer: Producer) -> Iterator[Made]:
    while True:
        try:
            made = producer.__next__()
        except StopIteration:
            return
        yield made
