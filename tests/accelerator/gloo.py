"""Collectives of tensors on the simulated accelerator: by gloo, on the host, and on a stream of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

NAME = "simulated_gloo"
_ProcessGroup: Any = dist.ProcessGroup  # its methods are overloaded


class _Copies(dist.Work):
    """A collective whose results may still be on their way: `wait` makes the current stream wait for them."""

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: Any = None) -> bool:  # noqa: ARG002
        self._future.wait()
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


class GlooOnStreams(_ProcessGroup):  # type: ignore[misc]
    """Copies tensors to the host, exchanges them by gloo, and copies the results back without waiting: who
    reads them on another stream before the work's `wait` reads nonsense, as with NCCL."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._stream = torch.Stream(device=torch.accelerator.current_accelerator())

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> dist.Work:
        return self._exchanged(tensors, tensors, lambda _, into: self._gloo.allreduce(into, options))

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> dist.Work:
        return self._exchanged(tensors, tensors, lambda _, into: self._gloo.broadcast(into, options))

    def allgather(self, results: list[list[torch.Tensor]], tensors: list[torch.Tensor], options: Any) -> Any:
        (flat,) = results
        return self._exchanged(
            tensors, flat, lambda given, into: self._gloo.allgather([into], given, options)
        )

    def _exchanged(
        self,
        given: list[torch.Tensor],
        results: list[torch.Tensor],
        exchange: Callable[[list[torch.Tensor], list[torch.Tensor]], dist.Work],
    ) -> dist.Work:
        if given[0].device.type == "cpu":  # torch gives a process group in Python the tensors of all devices
            return exchange(given, results)
        self._stream.wait_stream(torch.accelerator.current_stream(given[0].device))
        with self._stream:
            ours, theirs = ([tensor.cpu().pin_memory() for tensor in each] for each in (given, results))
            exchange(ours, theirs).wait()
            for tensor, host in zip(results, theirs, strict=True):
                tensor.copy_(host, non_blocking=True)
                tensor.record_stream(self._stream)
            future: torch.futures.Future[Any] = torch.futures.Future(devices=[given[0].device])
            future.set_result(results)
        return _Copies(future)


def register() -> None:
    """Makes this what the default process group has for the simulated accelerator."""
    dist.Backend.register_backend(NAME, GlooOnStreams, devices="simulated")
