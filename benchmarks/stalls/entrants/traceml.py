"""TraceML (pip install traceml-ai), with its context around each step as its documentation asks for.

Its primary diagnosis says which part of the steps is long. Input-bound is answered as "loading", time outside
of forward, backward and optimizer ("residual") as "step"; bound by computation is as it should be.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

SECONDS = 12.0
KINDS = {
    "INPUT_BOUND": "loading",
    "H2D_BOUND": "copy",
    "RESIDUAL_HEAVY": "step",
    "COMPUTE_BOUND": "healthy",
    "NO_CLEAR_PERFORMANCE_BOTTLENECK": "healthy",
}


def train(command: list[str]) -> None:
    """Runs the script in the process that TraceML starts."""
    import torch
    import traceml_ai
    from watched import watch

    traceml_ai.init()
    models: list[torch.nn.Module] = []

    def keep(model: torch.nn.Module, _: object) -> None:
        """Keeps the first module that is called: TraceML times the phases of that one."""
        models.append(model)
        hook.remove()

    hook = torch.nn.modules.module.register_module_forward_pre_hook(keep)
    loops = watch(command[1:], SECONDS, lambda: traceml_ai.trace_step(models[0]) if models else nullcontext())
    Path(command[0]).write_text(str(loops[0].samples / loops[0].seconds))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "traceml_ai.launcher.cli", "run", __file__, "--mode", "summary"]
        options = ["--logs-dir", folder, "--run-name", "run", "--args", f"{folder}/rate", *sys.argv[1:]]
        subprocess.run([*command, *options], stdout=sys.stderr, check=True)
        summary = json.loads(Path(folder, "run", "final_summary.json").read_text())
        diagnosis = summary["primary_diagnosis"]
        answer = {
            "kind": KINDS.get(diagnosis["kind"], "undecided"),
            "cause": diagnosis.get("summary", ""),
            "advice": diagnosis.get("action", ""),
            "samples_per_second": float(Path(folder, "rate").read_text()),
            "details": diagnosis,
        }
    print(json.dumps(answer))


if __name__ == "__main__":
    main() if Path(sys.argv[1]).suffix == ".py" else train(sys.argv[1:])
