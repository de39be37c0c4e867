"""Statistics of loaders for the tools that draw them: Prometheus, TensorBoard, Perfetto. See docs/stats.md.

>>> import headrace.export
>>> server = headrace.export.MetricsServer({"train": train, "val": val}, port=9400)  # doctest: +SKIP
>>> headrace.export.to_tensorboard(train.stats(), writer, step)  # doctest: +SKIP

A trace for Perfetto is recorded by ``with loader.trace("trace.json"): …``.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from headrace.export.live import Job, jobs
    from headrace.export.prometheus import MetricsServer
    from headrace.export.tensorboard import to_tensorboard

__all__ = ["Job", "MetricsServer", "jobs", "to_tensorboard"]
# Imported when they are first asked for: `headrace top` imports this package for what needs no NumPy.
_PLACES = {
    "Job": "headrace.export.live",
    "MetricsServer": "headrace.export.prometheus",
    "jobs": "headrace.export.live",
    "to_tensorboard": "headrace.export.tensorboard",
}


def __getattr__(name: str) -> typing.Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'headrace.export' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value
