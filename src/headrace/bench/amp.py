"""What automatic mixed precision brings here: memory and speed of a training step, by precision.

The claim that it is measured against: half the memory, a fifth faster. A step is forward, loss, backward and
an SGD step on one batch of noise that stays where it is, so that no loader has a part in it.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from headrace.errors import ConfigError
from headrace.recipes.memory import is_out_of_memory
from headrace.recipes.model import builder
from headrace.recipes.ranks import choose_device

CLASSES = 1000
WARMUP_STEPS = 3
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Row:
    """One precision.

    Attributes:
        name: fp32, bf16 or fp16.
        seconds: of each step.
        activation_bytes: what autograd keeps from the forward pass for the backward pass.
        peak_bytes: the most that the device's allocator gave during a step; None on the CPU, which has no
            such count.
        loss: of the last step; None: it wasn't measured.
        missing: why this precision was not measured; "" where it was.
    """

    name: str
    seconds: list[float]
    activation_bytes: int
    peak_bytes: int | None
    loss: float | None
    missing: str = ""

    @property
    def median(self) -> float:
        """Seconds of the middle step."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Amp:
    """What the experiment gave.

    Attributes:
        arch, batch_size, size, channels_last: what was trained.
        device: its name; threads: of the CPU.
        rows: fp32 first.
    """

    arch: str
    batch_size: int
    size: int
    channels_last: bool
    device: str
    threads: int
    torch_version: str
    rows: list[Row]

    def memory(self, row: Row) -> int:
        """What a step took: the allocator's peak, or on the CPU activations."""
        return row.activation_bytes if row.peak_bytes is None else row.peak_bytes

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return asdict(self)


def run(
    arch: str = "resnet50",
    batch_size: int = 64,
    size: int = 224,
    steps: int = 20,
    channels_last: bool = True,
    device: str | None = None,
    progress: Callable[[str], None] = lambda name: None,  # noqa: ARG005
) -> Amp:
    """Trains a few steps in each precision, each from the same weights.

    Args:
        steps: timed, after three that are not.
        device: None: the accelerator if there is one, else the CPU.
        progress: called with the name of what is run next.

    Raises:
        ConfigError: there is no such model or device, or a step doesn't fit in memory.
    """
    make_model = builder(arch)
    where = choose_device(device)
    rows = []
    for name in DTYPES:
        progress(name)
        missing = _missing(name, where)
        if missing:
            rows.append(Row(name, [], 0, None, None, missing))
            continue
        try:
            rows.append(_measure(name, make_model, batch_size, size, steps, channels_last, where))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise ConfigError(
                f"--batch-size {batch_size}: so many pictures of {size}×{size} in {name} don't fit in the"
                f" memory of {where}. Pass a smaller one, or a smaller --size."
            ) from error
        gc.collect()
        if where.type == "cuda":
            torch.cuda.empty_cache()  # the next one's peak is its own
    described = torch.cuda.get_device_name(where) if where.type == "cuda" else where.type
    return Amp(
        arch,
        batch_size,
        size,
        channels_last,
        described,
        torch.get_num_threads(),
        torch.__version__,
        rows,
    )


def cpu_has(name: str) -> bool:
    """Whether this CPU multiplies in the precision `name`; without that it only stores less."""
    flags = {"bf16": ("avx512_bf16", "amx_bf16", "bf16"), "fp16": ("avx512_fp16", "amx_fp16", "asimdhp")}
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        found = {word for line in file if line.startswith(("flags", "Features")) for word in line.split()}
    return any(flag in found for flag in flags.get(name, ()))


def notes(result: Amp) -> list[str]:
    """What the figures mean, in sentences."""
    missing = [f"{row.name}: not measured, as {row.missing}." for row in result.rows if row.missing]
    if result.device != "cpu":
        text = "Peak: of torch's allocator; weights, gradients and the optimizer's state in it stay fp32."
        return [*missing, text]
    texts = [
        *missing,
        "On a CPU there is no allocator's peak: memory is of activations alone, halved where autocast"
        " stores them in two bytes. Weights, gradients and the optimizer's state stay fp32;"
        " autocast adds copies of the weights, which a small batch doesn't make up for.",
    ]
    if not cpu_has("bf16"):
        texts.append(
            "This CPU has no bf16 instructions (avx512_bf16, amx_bf16): numbers are stored in bf16 and"
            " multiplied in fp32, so that a step is slower, or at best as fast."
        )
    texts.append("It says nothing of a GPU: run it there.")
    return texts


def _missing(name: str, device: torch.device) -> str:
    if (
        name == "bf16"
        and device.type == "cuda"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        return "this GPU doesn't compute in bf16"
    if name == "fp16" and device.type == "cpu" and not cpu_has(name):
        return "this CPU doesn't compute in fp16"
    return ""


def _measure(
    name: str,
    make_model: Callable[[int], nn.Module],
    batch_size: int,
    size: int,
    steps: int,
    channels_last: bool,
    device: torch.device,
) -> Row:
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = make_model(CLASSES).to(device).to(memory_format=layout)
    images = torch.randn(batch_size, 3, size, size, device=device).to(memory_format=layout)
    labels = torch.randint(CLASSES, (batch_size,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")
    dtype = DTYPES[name]

    def step(counted: list[int] | None = None) -> torch.Tensor:
        with _kept(counted), torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    sizes: list[int] = []
    for number in range(WARMUP_STEPS):
        step(sizes if number == 0 else None)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds, loss = [], images.new_zeros(())
    for _ in range(steps):
        start = time.perf_counter()
        loss = step()
        _finish(device)
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return Row(name, seconds, sum(sizes), peak, float(loss.item()))


@contextmanager
def _kept(counted: list[int] | None) -> Iterator[None]:
    """Adds to `counted` the bytes of every storage that autograd keeps, each once."""
    if counted is None:
        yield
        return
    seen: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            seen[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield
    counted.append(sum(tensor.untyped_storage().nbytes() for tensor in seen.values()))


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
