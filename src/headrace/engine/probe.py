"""A few samples of the user's dataset, measured where they can leave no trace: in a forked child.

A dataset that opens its file at the first sample must not have it open before worker processes are forked,
and a counter must not run ahead.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import statistics
import struct
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from headrace.device.structure import tensors
from headrace.engine.guarded import FORKED_CUDA_SIGN, Guarded
from headrace.engine.seeding import GeneratorStates
from headrace.engine.shared_memory import tensor_bytes
from headrace.engine.sharing import changed, snapshot, unshareable
from headrace.records import Probe

# Enough samples to see past the first one's imports; what they may take together, two being made anyway.
MAX_SAMPLES = 8
MAX_SECONDS = 0.01
# Long enough for the GIL to change hands a few times (it does so every 5 ms).
GAIN_SECONDS = 0.03
LENGTH = struct.Struct("=I")
# A child that hangs (a lock that another thread held at the fork) is given up.
DEADLINE_SECONDS = 5.0


def probe(guarded: Guarded, indices: Sequence[Any]) -> Probe | str:
    """Measures samples at `indices`; a reason where that isn't possible."""
    if not hasattr(os, "fork"):
        return "this system can't fork a process to measure samples in"
    if not indices:
        return "there are no samples to measure"
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        # Python warns of forks beside threads; a child that this harms is given up after DEADLINE_SECONDS.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _in_child(guarded, indices, read_end, write_end)
    os.close(write_end)
    try:
        return _answer(read_end)
    finally:
        os.close(read_end)
        os.kill(child, signal.SIGKILL)
        # Its memory, a copy of this process's, takes as long to be given back as the samples took.
        threading.Thread(target=os.waitpid, args=(child, 0), daemon=True).start()


def _in_child(guarded: Guarded, indices: Sequence[Any], read_end: int, write_end: int) -> None:
    status = 1
    try:
        os.close(read_end)
        torch.set_num_threads(1)  # OpenMP's threads didn't come along; torch's own workers do the same
        try:
            result: Probe | str = measure(guarded, indices)
        except Exception as error:  # the user's code may raise anything
            if FORKED_CUDA_SIGN in str(error):
                result = Probe(1, 0.0, 0.0, 0, draws=False, against_threads=None, gain=None, on_device=True)
            else:
                result = f"a sample raised {type(error).__name__}: {error}"[:1000]
        answer = pickle.dumps(result)
        os.write(write_end, LENGTH.pack(len(answer)) + answer)
        status = 0
    finally:
        os._exit(status)


def _answer(read_end: int) -> Probe | str:
    deadline, data = time.monotonic() + DEADLINE_SECONDS, b""
    while time.monotonic() < deadline:
        if not select.select([read_end], [], [], 0.1)[0]:
            continue
        chunk = os.read(read_end, 65536)
        if not chunk:
            break
        data += chunk
        if len(data) >= LENGTH.size and len(data) == LENGTH.size + LENGTH.unpack_from(data)[0]:
            result: Probe | str = pickle.loads(data[LENGTH.size :])
            return result
    else:
        return f"measuring took more than {DEADLINE_SECONDS:g} s"
    return "the process that measured samples died"


def measure(guarded: Guarded, indices: Sequence[Any]) -> Probe:
    """Measures samples in this process and thread, and changes whatever they change."""
    before, generators = snapshot(guarded.dataset), GeneratorStates.now()
    seconds, cpu_seconds, sample = [], [], None
    start = time.perf_counter()
    for index in list(indices)[:MAX_SAMPLES]:
        wall, cpu = time.perf_counter(), time.thread_time()
        sample = guarded.sample(index, None)
        seconds.append(time.perf_counter() - wall)
        cpu_seconds.append(time.thread_time() - cpu)
        if time.perf_counter() - start > MAX_SECONDS and len(seconds) > 1:
            break
    draws = not generators.unchanged()
    path = changed(before, snapshot(guarded.dataset))
    against = unshareable(guarded.dataset)
    if against is None and path is not None:
        against = f"{path} changes when a sample is made"
    # The first sample pays for imports and files being opened.
    rest = slice(1 if len(seconds) > 2 else 0, None)
    typical, cpu_typical = statistics.median(seconds[rest]), statistics.median(cpu_seconds[rest])
    gain = None
    if against is None and not draws and cpu_typical > 0.5 * typical:
        gain = _gain(guarded, list(indices), typical)
    nbytes = tensor_bytes(sample, arrays=True)
    on_device = any(tensor.device.type != "cpu" for tensor in tensors(sample))
    typical_cpu = min(typical, cpu_typical)
    return Probe(len(seconds), typical, typical_cpu, nbytes, draws, against, gain, on_device)


def _gain(guarded: Guarded, indices: list[Any], typical: float) -> float:
    """Samples per second of two threads, as a multiple of one thread's."""
    count = max(1, int(GAIN_SECONDS / max(typical, 1e-7)))
    chosen = (indices * (1 + count // len(indices)))[:count]

    def make(_: int) -> None:
        for index in chosen:
            guarded.sample(index, None)

    with ThreadPoolExecutor(2) as threads:
        start = time.perf_counter()
        list(threads.map(make, range(1)))
        one = time.perf_counter() - start
        start = time.perf_counter()
        list(threads.map(make, range(2)))
        two = time.perf_counter() - start
    return 2 * one / two
