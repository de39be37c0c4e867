"""Thresholds on utilization and on the time spent waiting for data, as published guides give them.

- Training that waits for data for less than 5 % of its time isn't input-bound, above 20 % it is highly so:
  TensorFlow's profiler (input pipeline analyzer, `op_stats_to_input_pipeline_analysis.cc`).
- I/O wait above 50 %: reading. Processor use above 90 %: preprocessing. Steps three standard deviations above
  the mean: outliers. Memory above 90 %. These are Amazon SageMaker Debugger's built-in profiler rules
  (IOBottleneck, CPUBottleneck, StepOutlier and others), which apply while the device is hardly used; on a
  machine without one, training that waits for data stands for that.
- `num_workers` as many as cores, more than 0; workers that persist if epochs are short; no more threads than
  cores: PyTorch's performance tuning guide and its documentation of DataLoader, Lightning's page on speed.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time

import psutil
import torch
from watched import Loop, watch

SECONDS = 12.0
INPUT_BOUND, HIGHLY = 0.05, 0.2
IO_WAIT, PROCESSOR, MEMORY = 50.0, 90.0, 90.0
CORES = len(psutil.Process().cpu_affinity())


class Usage(threading.Thread):
    """Looks at the machine every half second: percent of processor, I/O wait and memory."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.looks: list[tuple[float, float, float]] = []

    def run(self) -> None:
        psutil.cpu_times_percent()
        while True:
            time.sleep(0.5)
            times = psutil.cpu_times_percent()
            self.looks.append(
                (100 - times.idle - times.iowait, times.iowait, psutil.virtual_memory().percent)
            )

    def means(self) -> list[float]:
        return [statistics.mean(column) for column in zip(*self.looks, strict=True)] or [0.0, 0.0, 0.0]


def judge(loops: list[Loop], processor: float, io_wait: float, memory: float) -> tuple[str, str]:
    """(The kind of cause, the advice) of the first rule that holds."""
    loop, all_seconds = loops[0], sum(one.seconds for one in loops)
    workers = loop.loader.num_workers
    waiting = sum(loop.waits) / loop.seconds
    mean, deviation = statistics.mean(loop.waits), statistics.pstdev(loop.waits)
    outliers = sum(wait for wait in loop.waits if wait > mean + 3 * deviation)
    rules = (
        (memory > MEMORY, "memory", "less data in memory"),
        (torch.get_num_threads() > CORES, "oversubscribed", f"torch.set_num_threads({CORES})"),
        (
            all_seconds - loop.seconds > HIGHLY * all_seconds,
            "validation",
            "more workers for the other loader",
        ),
        (waiting < INPUT_BOUND, "healthy", "nothing: training isn't input-bound"),
        (
            workers and len(loop.firsts) > 1 and sum(loop.firsts) > HIGHLY * loop.seconds,
            "startup",
            "persistent_workers=True",
        ),
        (workers == 0, "workers", f"num_workers={CORES}"),
        (outliers > HIGHLY * sum(loop.waits), "straggler", "a larger prefetch_factor"),
        (io_wait > IO_WAIT, "read", "faster storage, or a cache on a local disk"),
        (processor > PROCESSOR, "loading", "cheaper transforms, stored results, or transforms on the device"),
        (workers < CORES, "workers", f"num_workers={CORES}"),
        (waiting > HIGHLY, "loading", "a profile of the dataset"),
    )
    return next(((kind, advice) for holds, kind, advice in rules if holds), ("undecided", ""))


def main() -> None:
    usage = Usage()
    usage.start()
    loops = [loop for loop in watch(sys.argv[1:], SECONDS) if loop.steps]
    processor, io_wait, memory = usage.means()
    kind, advice = judge(loops, processor, io_wait, memory)
    waiting = sum(loops[0].waits) / loops[0].seconds
    answer = {
        "kind": kind,
        "cause": f"waiting {waiting:.0%} of the time, processor {processor:.0f} %, I/O wait {io_wait:.0f} %",
        "advice": advice,
        "samples_per_second": loops[0].samples / loops[0].seconds,
    }
    if kind != "healthy" and waiting < 1:
        answer["at_most"] = 1 / (1 - waiting)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
