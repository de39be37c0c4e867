"""The cost to a training step of being watchable, and of being watched by `headrace top`.

    python benchmarks/top_overhead.py [--rounds 10] [--against OTHER_CHECKOUT/src]

The loop does nothing but receive batches of 4 numbers of a gathered TensorDataset, the least that a step can
be. Each round runs one process per variant, one after the other: nobody can look (HEADRACE_TOP=0), somebody
could, somebody looks once a second, ten times a second; with --against, another checkout of Headrace, too.

Time is CPU time per step. Least: of the loop's thread, in the best of 200 chunks of 2,000 steps: who shares
the machine disturbs the others. Mean: of the whole process over all chunks, answers included.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

CHUNK, CHUNKS = 2000, 200

STEPS = f"""
import sys, time, torch, headrace
from torch.utils.data import TensorDataset
loader = headrace.DataLoader(TensorDataset(torch.arange({4 * CHUNK})), batch_size=4)
for batch in loader:
    pass
print("begun", flush=True)
begun, chunks = time.process_time_ns(), []
while len(chunks) < {CHUNKS}:
    start = time.thread_time_ns()
    for batch in loader:
        pass
    chunks.append((time.thread_time_ns() - start) / {CHUNK})
print(min(chunks), (time.process_time_ns() - begun) / {CHUNK * CHUNKS}, flush=True)
"""


def run(top: str, pause: float | None, source: str | None) -> tuple[float, float]:
    """(least, mean) nanoseconds per step; asked every `pause` seconds."""
    path = {} if source is None else {"PYTHONPATH": source}
    process = subprocess.Popen(
        [sys.executable, "-c", STEPS],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "HEADRACE_TOP": top, **path},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    if pause is not None:
        from headrace.export.live import jobs

        [job] = [job for job in jobs() if job.pid == process.pid]
        asked = 0
        while process.poll() is None:
            asked += job.ask() is not None
            time.sleep(pause)
        assert asked > 1
    least, mean = map(float, process.stdout.read().split())
    process.wait()
    return least, mean


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--against", help="the src folder of another checkout")
    asked = parser.parse_args()
    variants: dict[str, tuple[str, float | None, str | None]] = {
        "HEADRACE_TOP=0": ("0", None, None),
        "nobody looks": ("1", None, None),
        "once a second": ("1", 1.0, None),
        "ten times a second": ("1", 0.0, None),
    }
    if asked.against:
        variants["the other checkout"] = ("0", None, asked.against)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for _ in range(asked.rounds):
        for name, variant in variants.items():
            found[name].append(run(*variant))
    print(
        f"{'ns per step':<20}{'least':>8}{'mean':>8}   against HEADRACE_TOP=0 of the same round: least, mean"
    )
    for name, pairs in found.items():
        changes = []
        for which in (0, 1):
            rounds = zip(pairs, found["HEADRACE_TOP=0"], strict=True)
            change = sorted(pair[which] / zero[which] - 1 for pair, zero in rounds)
            changes.append(f"{statistics.median(change):+.1%} ({change[0]:+.1%} to {change[-1]:+.1%})")
        least, mean = min(one for one, _ in pairs), statistics.median(two for _, two in pairs)
        print(f"{name:<20}{least:>8,.0f}{mean:>8,.0f}   {', '.join(changes)}")


if __name__ == "__main__":
    main()
