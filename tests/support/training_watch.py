"""Imported where Python starts to run someone's training script (see `training_scripts`).

Equal seeds for scripts that set none, and a record of what the script's losses are given: a line of JSON for
each batch.
"""

from __future__ import annotations

import functools
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel


def classes(target: torch.Tensor) -> list[int]:
    """Labels; of mixed images the classes of the whole batch, whatever their shares."""
    return target.tolist() if target.ndim == 1 else target.sum(0).nonzero().flatten().tolist()


def record(module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
    """Writes which samples are in a batch, and numbers that depend on their pixels and on the weights."""
    if "CrossEntropy" not in type(module).__name__:
        return
    output, target = arguments
    samples = [list(output.shape), str(output.dtype), classes(target)]
    numbers = [output.detach().double().sum().item(), target.double().sum().item()]
    rank = os.environ.get("RANK", "0")
    line = json.dumps({"samples": samples, "numbers": numbers})
    with Path(f"{os.environ['HEADRACE_TEST_RECORD']}-{rank}").open("a") as file:
        file.write(line + "\n")


def ranks_on_cpu() -> None:
    """Lets torchvision's scripts, which know ranks with CUDA only, join on the CPU."""
    join, parallel, tensor = torch.distributed.init_process_group, DistributedDataParallel, torch.tensor
    torch.cuda.set_device = lambda device: None
    torch.distributed.init_process_group = lambda backend, **options: join("gloo", **options)
    torch.nn.parallel.DistributedDataParallel = lambda model, device_ids: parallel(model)  # type: ignore[misc, assignment]
    torch.tensor = lambda value, device=None, **options: tensor(value, **options)


torch.manual_seed(0)
np.random.seed(0)
random.seed(0)
torch.set_num_threads(1)
if os.environ["HEADRACE_TEST_HOOKS"]:
    # With hooks for all modules Headrace runs transforms as they are written, with the numbers torch draws.
    torch.nn.modules.module.register_module_forward_pre_hook(record)
else:
    make = torch.nn.Module.__init__

    @functools.wraps(make)
    def make_watched(self: torch.nn.Module, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        if type(self).__name__.endswith(("CrossEntropy", "CrossEntropyLoss")):
            self.register_forward_pre_hook(record)

    torch.nn.Module.__init__ = make_watched  # type: ignore[method-assign]
if "HEADRACE_TEST_RANKS_ON_CPU" in os.environ:
    ranks_on_cpu()
