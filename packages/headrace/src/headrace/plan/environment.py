"""The environment that a plan runs in: the order of its samples, ranks, workers and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace._native import ffi
from headrace._native.decoders import decoder_choice, missing_formats
from headrace.config import READ_THREADS, LoaderConfig
from headrace.order.batches import Batches, OrderedBatches, SampledBatches
from headrace.order.shard import detect_rank
from headrace.plan.segments import DatasetSegment, NativeSegment, Plan
from headrace.records import DeferralCounts

MOST_NAMED = 4  # places in the user's code, of one kind


def workers_text(config: LoaderConfig) -> str:
    """Describes the workers that the user asked for, such as ``2 processes: num_workers=2; …``."""
    count, kind = config.num_workers, config.workers_kind
    if kind == "caller":
        why = "the default for an IterableDataset"
        if config.workers_given is not None:
            why = "num_workers=0"
        elif not config.streamed:
            why = "a process would take longer to send a row than to pick it"
        return f"none: {why}"
    given = "one for each usable core" if config.workers_given is None else f"num_workers={count}"
    if kind == "thread":
        plural, why = "s", f"{given}, worker_kind='thread'; they share the dataset's state"
    else:
        plural, why = "es", f"{given}; each has a copy of the dataset"
    if config.streamed:
        why = "each iterates over its own copy of the dataset"
    return f"{count} {kind}{'' if count == 1 else plural}: {why}"


def starts_processes(config: LoaderConfig, plan: Plan) -> bool:
    """Returns whether an epoch is made by worker processes."""
    return plan.runs_python and config.workers_kind == "process"


def why_no_init(config: LoaderConfig, plan: Plan) -> str:
    """The reason why nobody calls `worker_init_fn`, if the user passed one and asked for workers, or ""."""
    if config.worker_init_fn is None or config.num_workers == 0:
        return ""
    if not plan.runs_python and _is_timms(config.worker_init_fn):
        return ""
    on_threads = config.workers_kind == "thread"
    by = "native code" if not plan.runs_python else "threads" if on_threads else ""
    return f"samples are made by {by}, and there are no worker processes" if by else ""


def _is_timms(worker_init: Callable[[int], Any]) -> bool:
    """Returns whether timm's `create_loader` passes it: it seeds generators that native code doesn't use."""
    if not isinstance(worker_init, partial):
        return False
    if not isinstance(worker_init.keywords.get("worker_seeding"), str):  # a user function
        return False
    name = getattr(worker_init.func, "__module__", ""), getattr(worker_init.func, "__name__", "")
    return name == ("timm.data.loader", "_worker_init")


@dataclass(frozen=True, eq=False, kw_only=True)
class Environment:
    """The environment that a loader's plan runs in, as `explain()` prints it below the steps.

    Attributes:
        config: arguments of the loader.
        batches: order of the samples, and their shares among ranks.
        seed: seed of the order, or None if one is drawn for each epoch.
        seeded: whether the user's Python is seeded for each sample.
        counts: how the first samples of worker processes were made, or None if none were made yet.
        advice: another value of `num_workers` to try, with the reason.
        residence: why a gathered dataset is on the device, or isn't; "" before the first epoch.
        remote: the object store that samples are fetched from, or "".
    """

    config: LoaderConfig
    batches: Batches
    seed: int | None = None
    seeded: bool = False
    counts: DeferralCounts | None = None
    advice: tuple[int, str] | None = None
    residence: str = ""
    remote: str = ""

    def lines(self, plan: Plan) -> Iterator[str]:
        """Lines such as ``ranks: 2 of 8, …``."""
        yield from self._sharing()
        if plan.runs_python:
            yield from self._python(plan)
        if plan.native is not None:
            yield from self._threads(plan.native)
        else:
            yield f"workers: {self.workers(plan)}"
        why = why_no_init(self.config, plan)
        if why:
            yield f"worker_init_fn: not called, as {why}"
        if self.remote:
            yield f"remote: {self.remote}"

    def workers(self, plan: Plan) -> str:
        """Describes who makes the samples, and why."""
        if plan.gather is not None:
            residence = [self.residence] if self.residence else []
            return "; ".join(["none, batches are made when they are asked for", *residence])
        if plan.native is not None:
            return f"{self.config.num_workers} decode threads"
        tried = "" if self.advice is None else "\n  try num_workers={}: {}".format(*self.advice)
        return f"{workers_text(self.config)}{tried}"

    def _sharing(self) -> Iterator[str]:
        """Describes the order of the samples and this rank's share."""
        batches, rank_given = self.batches, self.config.rank is not None
        if not isinstance(batches, OrderedBatches):
            whom = "sampler" if isinstance(batches, SampledBatches) else "dataset"
            why = "; rank='auto' changes nothing there" if rank_given else ""
            yield f"order: {batches.identity()}"
            yield f"ranks: left to the {whom}{why}"
            return
        seed = "seed drawn by torch for each epoch" if self.seed is None else f"seed {self.seed}"
        yield f"order: {batches.identity()}" + (f", {seed}" if batches.shuffles else "")
        shard = batches.shard
        others = 1 if rank_given else detect_rank()[1]
        if shard.world_size > 1:
            remainder = "dropped" if shard.drop_last else shard.remainder
            share = f"{shard.rank} of {shard.world_size}, global batches of {shard.global_batch}"
            yield f"ranks: {share}, remainder {remainder}"
        elif others > 1:
            yield f"ranks: not shared, each of {others} gets every sample; pass rank='auto' to share them"
        else:
            yield "ranks: not shared, this process gets every sample"

    def _threads(self, native: NativeSegment) -> Iterator[str]:
        """Threads and memory of native code."""
        config = self.config
        nbytes = config.samples_of_a_batch * native.sample_nbytes
        decoders = ", ".join(decoder_choice()) or "none, Pillow decodes"
        yield f"threads: {config.num_workers} decode; {READ_THREADS} read ahead if reads block"
        yield (
            f"memory: up to {config.depth(nbytes)} batches in flight of {nbytes / 1e6:.1f} MB"
            f"{', pinned' if config.pin_memory else ''}; budget {config.memory_budget / 1e6:,.0f} MB"
        )
        yield "; ".join(filter(None, [f"decoders: {decoders} ({ffi.simd_active()})", missing_formats()]))

    def _python(self, plan: Plan) -> Iterator[str]:
        """Describes what native code does for the user's Python, and how its random numbers are seeded."""
        counts = self.counts
        if isinstance(plan.samples, DatasetSegment):
            yield f"images: {self._images(plan)}"
            if counts is not None:
                readers, steps = _most(counts.readers), _most(counts.tensor_steps)
                own = [f"{name} runs as Python on the pixels of {n} images" for name, n in readers]
                own += [f"{name} runs as Python on {n} tensors" for name, n in steps]
                if own:
                    yield f"your code: {'; '.join(own)}"
                if counts.patched:
                    yield f"replaced: {'; '.join(counts.patched)}; what builds on it runs as written"
                if counts.differing:
                    yield f"runs as written: {'; '.join(counts.differing)}"
        yield f"random numbers in Python: {self._drawing()}"

    def _images(self, plan: Plan) -> str:
        """Describes what native code does for a dataset whose own code makes the samples."""
        by_pillow, counts = "Pillow decodes those that the dataset opens", self.counts
        if not self.config.deferred:
            return f"{by_pillow}, because of deferred=False"
        if not starts_processes(self.config, plan):
            return f"{by_pillow}; native code does so in worker processes (num_workers=1 or more)"
        if counts is None:
            return "not known yet; call explain() again after the first batch"
        if counts.problem:
            return f"{by_pillow}; native code can't do so here: {counts.problem}"
        if not counts.deferred:
            return f"{by_pillow}, because a function that deferred images stand for was replaced"
        if counts.tensors:
            seen = f"{counts.opened} images, {counts.tensors} tensors in the first batch of each worker"
            return f"native code decodes and transforms them, and writes the tensors ({seen})"
        if counts.opened:
            why = "Python makes the tensors of their pixels"
            if not counts.recorded:
                why = "torchvision transforms them, because a function that it calls was replaced"
            seen = f"{counts.opened} images in the first batch of each worker"
            return f"native code decodes them; {why} ({seen})"
        return "the dataset opened none that native code decodes, in the first batch of each worker"

    def _drawing(self) -> str:
        """Describes how random numbers of the user's Python are seeded."""
        kind = self.config.workers_kind
        if self.config.streamed:
            return "seeded as torch seeds an IterableDataset"
        if kind == "thread":
            return "not seeded, because threads share the generators"
        if self.seeded:
            return "seeded for each sample by seed, epoch and index"
        place = "drawn from this process's generators" if kind == "caller" else "seeded once per worker"
        return f"{place}, as in torch; pass seed=… to seed them for each sample"


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])[:MOST_NAMED]
