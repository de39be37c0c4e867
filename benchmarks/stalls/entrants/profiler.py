"""torch.profiler with the advice of its TensorBoard plugin (torch-tb-profiler, `run_generator.py`).

The plugin recommends workers if over 5 % of the step time is in the DataLoader. Apart from that, the operator
with the most time of its own is the answer if its name is a cause, as tutorials on profiling read the table.
"""

from __future__ import annotations

import json
import re
import sys

from torch.profiler import ProfilerActivity, profile
from watched import watch

SECONDS, MOST_STEPS, WARM_UP = 10.0, 200, 5
LOADING = 0.05
TELLING = 0.2  # share of the time of an operator that names a cause
OPERATORS = {
    r"aten::item|_local_scalar_dense|(cuda|hip)(Stream|Device)Synchronize": "synchronise",
    r"pin_memory": "pin",
    r"Memcpy HtoD \(Pageable": "copy",
    r"dynamo|compile": "recompile",
}


class Steps:
    """A context of each step, which profiles all but the first ones."""

    def __init__(self) -> None:
        self.profile = profile(activities=[ProfilerActivity.CPU])
        self.seen = 0

    def __enter__(self) -> None:
        self.seen += 1
        if self.seen == WARM_UP:
            self.profile.start()
        if self.seen == WARM_UP + MOST_STEPS:
            self.profile.stop()

    def __exit__(self, *_: object) -> None:
        pass


def main() -> None:
    steps = Steps()
    loops = watch(sys.argv[1:], SECONDS, lambda: steps)
    if WARM_UP <= steps.seen < WARM_UP + MOST_STEPS:
        steps.profile.stop()
    rows = steps.profile.key_averages() if steps.seen > WARM_UP else []
    answer = {"kind": "undecided", "samples_per_second": loops[0].samples / loops[0].seconds}
    if rows:
        loop = loops[0]
        taken = (loop.waits[WARM_UP:], loop.steps[WARM_UP:])
        whole = sum(sum(one[:MOST_STEPS]) for one in taken)
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
