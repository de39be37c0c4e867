"""Builds the shards of a pack: on threads of this process, or by a Ray cluster; the same bytes either way."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from headrace._machine import usable_cores
from headrace._native import ffi
from headrace.errors import ConfigError, PackError
from headrace.packs.changes import Changes
from headrace.packs.destinations import (
    Destination,
    FolderDestination,
    Shards,
    StoreDestination,
    differences,
    exists,
)
from headrace.packs.inputs import open_input
from headrace.packs.lmdb import TRANSACTION_BYTES, LmdbShards
from headrace.packs.records import Input, Plan, Progress, Record, Records, in_order, make_plan
from headrace.packs.request import PackRequest, PackSummary
from headrace.packs.rows import Encoded, Packed, write_index
from headrace.packs.tar import TarShards
from headrace.remote.client import is_url
from headrace.sources.pack_index import FILE_NAME, PackAbout, PackIndex

# Numbers of shards, and what each of them holds.
Work = Sequence[tuple[int, Records]]

# Threads beyond the cores: at any time one waits for the disk, or for the interpreter's lock; of reads from
# a store (True), each waits for the network.
READERS_BEYOND = {False: 1, True: 33}

# What a thread is given at a time: enough that handing it over costs nothing, and bounded in bytes.
CHUNK = 16
CHUNK_BYTES = 4_000_000


def run(request: PackRequest, progress: Progress | None) -> PackSummary:
    """Makes a pack, or finishes one; see `headrace.pack`."""
    src, dest, ray = request.src, request.dest, request.ray
    to_store, shard_size = is_url(dest), request.shard_size
    if request.format == "lmdb":
        shard_size = min(shard_size, TRANSACTION_BYTES)
        if ray is not None or to_store:
            raise ConfigError("format='lmdb' is one file on a local disk: by ray or to a URL, pack as 'tar'.")
    destination: Destination = (
        StoreDestination(str(dest), request.storage_options)
        if to_store
        else FolderDestination(Path(os.path.abspath(dest)))
    )
    if ray is not None and isinstance(src, (str, os.PathLike)) and not is_url(src):
        src = os.path.abspath(src)  # nodes work in folders of their own
    source = open_input(src, request.changes, request.storage_options)
    plan = make_plan(source.records(), shard_size, request.shuffle)
    made = {
        "headrace": ffi.build_info()["version"],
        "format": request.format,
        "source": source.kind,
        "records": plan.listing,
        "shard_size": shard_size,
        "shuffle": request.shuffle,
        **vars(request.changes),
    }
    finished_pack = _up_to_date(destination, source, plan, made)
    if finished_pack is not None:
        return _summary(destination, source, plan, finished_pack, reused=plan.shards, up_to_date=True)
    with destination.workplace(made, plan) as folder:
        shards = TarShards(folder) if request.format == "tar" else LmdbShards(folder, plan)
        finished = destination.finished(shards, plan)
        if not (folder / FILE_NAME).exists():
            missing = [(shard, plan.of(shard)) for shard in range(plan.shards) if shard not in finished]
            report = _counting(progress, missing, len(plan.records))
            beyond = READERS_BEYOND[is_url(src)]
            if ray is None and not to_store:
                threads = request.workers or usable_cores() + beyond
                write_shards(source, request.changes, shards, missing, threads, report)
            else:
                cores = request.workers or (1 if ray is not None else usable_cores())
                job = Job(source, request.changes, destination, cores + beyond, made["headrace"])
                if ray is not None:
                    build_on_ray(job, missing, ray, cores, report)
                else:
                    for shard, records in missing:
                        job.build(shard, records, report)
            shards.complete()
            parts = destination.parts(shards, plan)
            kept = [note for part in parts for note in part.notes]
            about = PackAbout(request.format, shards.shards(parts), source.classes, {**made, "kept": kept})
            write_index(folder, parts, about, shards.begins())
        index = PackIndex(folder / FILE_NAME)
        return _summary(destination, source, plan, index, reused=len(finished))


def _summary(
    destination: Destination,
    source: Input,
    plan: Plan,
    index: PackIndex,
    *,
    reused: int,
    up_to_date: bool = False,
) -> PackSummary:
    return PackSummary(
        path=destination.path,
        samples=len(index),
        shards=plan.shards,
        reused=reused,
        source_bytes=plan.source_bytes,
        pack_bytes=sum(shard.size for shard in index.about.shards) + index.nbytes,
        kept=tuple((key, why) for key, why in index.about.made["kept"]),
        notes=tuple(source.notes()),
        up_to_date=up_to_date,
    )


def _up_to_date(
    destination: Destination, source: Input, plan: Plan, made: dict[str, Any]
) -> PackIndex | None:
    """The index of the pack at the destination if it is the one to make, as far as options, keys, sizes and
    times of modification tell; None: there is none yet, or one that can't be compared with it.

    Raises:
        PackError: it is another pack.
    """
    existing = destination.existing()
    if existing is None:
        return None
    index, files = existing
    same_version = {"headrace": made["headrace"]}  # another version's pack of the same files is as good
    earlier = {name: index.about.made.get(name) for name in made} | same_version
    if different := differences(earlier, made):
        raise exists(str(destination), different)
    shards, modified = index.about.shards, source.modified_ns(plan.records)
    complete = all(shard.name in files and files[shard.name].size == shard.size for shard in shards)
    if not complete or modified is None:
        return None
    if modified >= min(files[name].modified_ns for name in (FILE_NAME, *(shard.name for shard in shards))):
        raise exists(str(destination), "files that have changed since")
    return index


def _counting(progress: Progress | None, missing: Work, total: int) -> Callable[[int], None]:
    """Reports samples to `progress` as they are written, those of earlier runs included."""
    done = total - sum(len(records) for _, records in missing)

    def report(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return report


def write_shards(
    source: Input,
    changes: Changes,
    shards: Shards,
    work: Work,
    workers: int,
    progress: Callable[[int], None],
) -> None:
    """Writes the shards in `work`, (number, records) each; calls `progress` with the number of samples that
    were written since the last call. Raises PackError.
    """

    def encode(record: Record) -> Encoded:
        sample, note = changes.apply(source.read(record))
        return Encoded(*shards.encode(sample), sample, note)

    def prepare(chunk: tuple[int, Records]) -> list[Packed]:
        return Packed.of([encode(record) for record in chunk[1]])

    with closing(in_order(prepare, _chunks(work), workers)) as stream:
        for shard, chunks in groupby(stream, key=lambda pair: pair[0][0]):
            with shards.writing(shard) as add:
                for _, samples in chunks:
                    add(samples)
                    progress(len(samples))


def _chunks(work: Work) -> Iterator[tuple[int, Records]]:
    """`work`, with each shard cut into bounded parts."""
    for shard, records in work:
        first, filled = 0, 0
        for number, size in enumerate(records.ordered_sizes()):
            if number - first == CHUNK or (number > first and filled + size > CHUNK_BYTES):
                yield shard, records[first:number]
                first, filled = number, 0
            filled += size
        yield shard, records[first:]


# How often a shard is started again after its process or its node died.
RETRIES = 5
# An address that doesn't answer within this is none of a cluster's.
KNOCK_SECONDS = 20.0
# Tasks a core that are given to the cluster before some are finished.
AHEAD = 2


@dataclass(frozen=True)
class Job:
    """What is the same for all shards of a pack; goes to every node.

    Attributes:
        source: the samples.
        changes: the changes to their images.
        destination: the place of the shards.
        threads: the number of threads that read and write a shard.
        version: Headrace's version, the same on all nodes, as another one may pack other bytes.
    """

    source: Input
    changes: Changes
    destination: Destination
    threads: int
    version: str

    def build(self, shard: int, records: Records, progress: Callable[[int], None]) -> None:
        """Makes one shard. Raises PackError and RemoteError."""
        with self.destination.building() as folder:
            shards = TarShards(folder)
            write_shards(self.source, self.changes, shards, [(shard, records)], self.threads, progress)
            self.destination.keep(folder, shard)


def build_on_ray(job: Job, work: Work, address: str, cores: int, progress: Callable[[int], None]) -> None:
    """Makes shards as tasks of the Ray cluster at `address`, each of which takes `cores`.

    Raises:
        ConfigError: Ray isn't installed, or no cluster answers.
        PackError, RemoteError: a shard can't be built; what is finished is kept.
    """
    with _cluster(address) as ray:
        task = ray.remote(_build).options(
            num_cpus=cores, max_retries=RETRIES, scheduling_strategy="SPREAD", name="headrace pack"
        )
        shared = ray.put(job)
        left = list(reversed(work))
        pending: dict[Any, tuple[int, int]] = {}
        try:
            while left or pending:
                # The cluster may grow and shrink meanwhile.
                room = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 0) // cores))
                while left and len(pending) < room:
                    shard, records = left.pop()
                    pending[task.remote(shared, shard, records)] = shard, len(records)
                for done in ray.wait(list(pending), timeout=1.0)[0]:
                    shard, count = pending.pop(done)
                    _receive(ray, done, shard)
                    progress(count)
        finally:
            for each in pending:
                ray.cancel(each, force=True)


def _build(job: Job, shard: int, records: Records) -> None:
    version = ffi.build_info()["version"]
    if version != job.version:
        raise PackError(f"{socket.gethostname()} has Headrace {version}, and {job.version} is wanted there.")
    try:
        job.build(shard, records, lambda _: None)
    except OSError as error:
        raise PackError(f"shard {shard}, on {socket.gethostname()}: {error}") from error


def _receive(ray: Any, done: Any, shard: int) -> None:
    try:
        ray.get(done)
    except PackError as error:
        # Ray's own error repeats the trace of the node; its cause is ours.
        raise PackError(str(getattr(error, "cause", error))) from None
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[0]
        raise PackError(
            f"shard {shard} can't be built on the cluster: {reason} Run the same command to continue: what is"
            " finished is kept."
        ) from error


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """Ray, in the cluster at `address`; "local": one of this machine alone, for as long as it is used."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"ray={address!r} needs Ray: pip install 'headrace[ray]'.") from error
    if ray.is_initialized():
        yield ray
        return
    if address == "local":
        # Of a cluster that is ours: nothing is sent home.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False)
    except Exception as error:  # Ray raises no less, as where its own node takes long to start
        raise ConfigError(
            f"ray={address!r}: no cluster can be reached: {error} Start one by ray start --head, name another"
            " address, or 'local' for this machine alone; on a busy machine set"
            " RAY_raylet_start_wait_time_s=180."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raises OSError where nobody listens at HOST:PORT: Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()
