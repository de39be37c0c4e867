"""What loaders count, for the tools that draw it: Prometheus, TensorBoard, Perfetto. See docs/stats.md.

>>> import headrace.export
>>> server = headrace.export.MetricsServer({"train": train, "val": val}, port=9400)  # doctest: +SKIP
>>> headrace.export.to_tensorboard(train.stats(), writer, step)  # doctest: +SKIP

A trace for Perfetto is recorded by ``with loader.trace("trace.json"): …``.
"""

from headrace.export.prometheus import MetricsServer
from headrace.export.tensorboard import to_tensorboard

__all__ = ["MetricsServer", "to_tensorboard"]
