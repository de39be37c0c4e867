"""Processes that train together: who this one is, and what all of them agree on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

import headrace

# If several come, the highest number counts: a scheduler's before a person's Ctrl-C.
SIGNALS = (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)
INTERRUPTED = (
    b"\nInterrupted: finishing and saving this step. Ctrl-C once more ends at once, without a checkpoint.\n"
)


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Joins the ranks that torchrun started: gloo for decisions, the device's backend for gradients."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield
        return
    backend = "gloo"
    if device.type != "cpu":
        backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
    dist.init_process_group(backend)
    try:
        yield
    finally:
        dist.destroy_process_group()


def choose_device(name: str | None) -> torch.device:
    """The device `name`, or by default the accelerator (torchrun's LOCAL_RANK of several), else the CPU."""
    present = torch.accelerator.current_accelerator(check_available=True)
    try:
        device = torch.device(name or present or "cpu")
        if device.type == "cpu":
            return device
        if present is not None and device.type != present.type:  # which set_device_index would set
            raise RuntimeError(f"this machine's accelerator is {present.type}")
        index = local_rank() if device.index is None else device.index
        torch.accelerator.set_device_index(index)
        return torch.device(device.type, index)
    except RuntimeError as error:
        raise headrace.ConfigError(
            f"--device {name or 'of the machine'} can't be used by local rank {local_rank()}:"
            f" {str(error).splitlines()[0]}. cpu, cuda and cuda:1 are devices; leave it out for what there"
            " is, and have torchrun start one process for each: --nproc-per-node."
        ) from error


def local_rank() -> int:
    """This rank's number on its machine, by torchrun; 0 without it."""
    return int(os.environ.get("LOCAL_RANK", "0"))


class Stopped(Exception):  # noqa: N818  # not an error
    """A signal came to some rank.

    Args:
        signal: the signal with the highest number that came, a `signal.Signals`.
    """


class StopSignal:
    """Reports SIGINT (Ctrl-C), SIGUSR1 or SIGTERM of any rank. Within `with` the process survives them,
    except for a second SIGINT, which is KeyboardInterrupt.

    All ranks call `start()` and `check()` once a step; the exchange is on the CPU, overlapped with the step.
    """

    def __init__(self) -> None:
        self._received = 0
        self._before: dict[int, Any] = {}
        self._flag = torch.zeros((), dtype=torch.int32)
        self._work: Any = None

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            # A shell that starts a job in the background lets it ignore the terminal's Ctrl-C.
            ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            wanted = [number for number in SIGNALS if number != signal.SIGINT or not ignored]
            self._before = {number: signal.signal(number, self._receive) for number in wanted}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def start(self) -> None:
        """Starts the exchange of the signals received so far."""
        self._flag.fill_(self._received)
        if dist.is_initialized():
            self._work = dist.all_reduce(self._flag, dist.ReduceOp.MAX, async_op=True)

    def check(self) -> None:
        """Raises Stopped, on all ranks alike, if any rank had received a signal when the exchange started;
        in a single process, if one has been received since."""
        if self._work is not None:
            self._work.wait()
        received = self._received if self._work is None else int(self._flag.item())
        if received:
            raise Stopped(signal.Signals(received))

    def _receive(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._received = max(self._received, number)
        if number != signal.SIGINT:
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if os.environ.get("RANK", "0") == "0":
            os.write(2, INTERRUPTED)  # not print: this may have interrupted one
