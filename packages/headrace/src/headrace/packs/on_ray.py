"""Builds the shards of a pack by a Ray cluster: the same bytes as on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.errors import ConfigError, PackError, require
from headrace.packs.samples import Listing

# How often a shard is started again after its process or its node died.
RETRIES = 5
# An address that doesn't answer within this is none of a cluster's.
CONNECT_SECONDS = 20.0
# Tasks a core that are given to the cluster before some are finished.
AHEAD = 2


def build_on_ray(
    build: Callable[[int, Listing], None],
    work: Sequence[tuple[int, Listing]],
    address: str,
    cores: int,
    report: Callable[[int], None],
) -> None:
    """Makes the shards in `work` as tasks of the Ray cluster at `address`, each by `build` on `cores` cores.
    Calls `report` with the number of samples in each shard that is finished. Raises ConfigError if Ray isn't
    installed or no cluster answers, PackError or RemoteError if a shard can't be built."""
    with _cluster(address) as ray:
        task = ray.remote(_call).options(
            num_cpus=cores, max_retries=RETRIES, scheduling_strategy="SPREAD", name="headrace pack"
        )
        shared = ray.put(build)
        waiting = list(reversed(work))
        pending: dict[Any, tuple[int, int]] = {}
        try:
            while waiting or pending:
                # The cluster may grow and shrink meanwhile.
                room = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 0) // cores))
                while waiting and len(pending) < room:
                    shard, items = waiting.pop()
                    pending[task.remote(shared, shard, items)] = shard, len(items)
                for done in ray.wait(list(pending), timeout=1.0)[0]:
                    shard, count = pending.pop(done)
                    _receive(ray, done, shard)
                    report(count)
        finally:
            for each in pending:
                ray.cancel(each, force=True)


def _call(build: Callable[[int, Listing], None], shard: int, items: Listing) -> None:
    build(shard, items)


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
    """Ray, in the cluster at `address`; "local" is one of this machine alone, for as long as it is used."""
    ray = require("ray", "ray")
    if ray.is_initialized():
        yield ray
        return
    if address == "local":
        # Of a cluster that is ours: nothing is sent home.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _connect(address)
        ray.init(address=address, log_to_driver=False)
    except Exception as error:  # Ray raises no less, as when its own node takes long to start
        raise ConfigError(
            f"ray={address!r}: no cluster can be reached: {error} Start one by ray start --head, name another"
            " address, or 'local' for this machine alone; on a busy machine set"
            " RAY_raylet_start_wait_time_s=180."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _connect(address: str) -> None:
    """Raises OSError if nobody listens at HOST:PORT: Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
