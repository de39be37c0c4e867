"""The work on single shards, by this process or by nodes of a Ray cluster: the same bytes either way."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace._native import ffi
from headrace.errors import ConfigError, PackError
from headrace.packs.changes import Changes
from headrace.packs.destinations import Destination
from headrace.packs.pipeline import write_shards
from headrace.packs.records import Input, Record
from headrace.packs.tar_shards import TarShards

Work = Sequence[tuple[int, Sequence[Record]]]

# How often a shard is begun anew after its process or its node died.
RETRIES = 5
# An address that doesn't answer within this is none of a cluster's.
KNOCK_SECONDS = 20.0
# Tasks a core that are given to the cluster before some are finished.
AHEAD = 2


@dataclass(frozen=True)
class Job:
    """What is the same for all shards of a pack; goes to every node.

    Attributes:
        source: to read from.
        changes: to its images.
        destination: of the shards.
        threads: that read and write one of them.
        version: of Headrace, the same on all nodes: another one may pack other bytes.
    """

    source: Input
    changes: Changes
    destination: Destination
    threads: int
    version: str

    def build(self, shard: int, records: Sequence[Record], progress: Callable[[int], None]) -> None:
        """Makes one shard. Raises PackError and RemoteError."""
        with self.destination.building() as folder:
            shards = TarShards(folder)
            write_shards(self.source, self.changes, shards, [(shard, records)], self.threads, progress)
            self.destination.keep(folder, shard)


def build(job: Job, work: Work, ray: str | None, cores: int, progress: Callable[[int], None]) -> None:
    """Makes shards: one after the other in this process, or as tasks of the Ray cluster at the address `ray`,
    each of which takes `cores`.

    Raises:
        ConfigError: Ray isn't installed, or no cluster answers.
        PackError, RemoteError: a shard can't be built; what is finished is kept.
    """
    if ray is not None:
        _build_on_ray(job, work, ray, cores, progress)
        return
    for shard, records in work:
        job.build(shard, records, progress)


def _build_on_ray(job: Job, work: Work, address: str, cores: int, progress: Callable[[int], None]) -> None:
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


def _build(job: Job, shard: int, records: Sequence[Record]) -> None:
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
        said = str(error).strip().splitlines()[0]
        raise PackError(
            f"shard {shard} can't be built on the cluster: {said} Run the same command to go on: what is"
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
            " address, or say 'local' for this machine alone; on a busy machine set"
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
