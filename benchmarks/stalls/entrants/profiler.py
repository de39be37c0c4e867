"""torch.profiler with the advice of its TensorBoard plugin (torch-tb-profiler, `run_generator.py`).

The plugin recommends workers if over 5 % of the step time is in the DataLoader. Apart from that, the operator
with the most time of its own is the answer if its name is a cause, as tutorials on profiling read the table.
"""

from __future__ import annotations

import json
import re
import sys
import time

from torch.profiler import ProfilerActivity, profile
from watched import WARM_UP, watch

SECONDS, MOST_STEPS = 10.0, 200
LOADING = 0.05
TELLING = 0.2  # share of the time of an operator that names a cause
OPERATORS = {
    r"aten::item|_local_scalar_dense|(cuda|hip)(Stream|Device)Synchronize": "synchronise",
    r"pin_memory": "pin",
    r"Memcpy HtoD \(Pageable": "copy",
    r"dynamo|compile": "recompile",
}


class Steps:
    """A context of each step, which profiles what comes between the first ones and the last."""

    def __init__(self) -> None:
        self.profile = profile(activities=[ProfilerActivity.CPU])
        self.seen, self.began, self.seconds = 0, 0.0, 0.0

    def __enter__(self) -> None:
        self.seen += 1

    def __exit__(self, *_: object) -> None:
        if self.seen == WARM_UP:
            self.profile.start()
            self.began = time.perf_counter()
        if self.seen == WARM_UP + MOST_STEPS:
            self.stop()

    def stop(self) -> None:
        if self.began and not self.seconds:
            self.seconds = time.perf_counter() - self.began
            self.profile.stop()


def main() -> None:
    steps = Steps()
    loop = watch(sys.argv[1:], SECONDS, lambda: steps)[0]
    steps.stop()
    answer = {"kind": "undecided"}
    if whole := steps.seconds:
        answer["samples_per_second"] = loop.samples / loop.seconds
        rows = steps.profile.key_averages()
        loading = sum(row.cpu_time_total for row in rows if row.key.startswith("enumerate(DataLoader)")) / 1e6
        own = [row for row in rows if not row.key.startswith("enumerate(DataLoader)")]
        top = max(own, key=lambda row: row.self_cpu_time_total)
        kind = next((kind for pattern, kind in OPERATORS.items() if re.search(pattern, top.key)), "")
        answer["cause"] = (
            f"{loading / whole:.0%} of the step time is in DataLoader, most of the rest in {top.key}"
        )
        if kind and top.self_cpu_time_total / 1e6 > TELLING * whole:
            answer["kind"] = kind
        elif loading > LOADING * whole:
            answer["kind"] = "loading" if loop.loader.num_workers else "workers"
            answer["advice"] = (
                "set num_workers on DataLoader's construction and enable multi-processes on data loading"
            )
            answer["at_most"] = whole / max(1e-9, whole - loading)
        else:
            answer["kind"] = "healthy"
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
