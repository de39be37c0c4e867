"""The effect of automatic mixed precision: memory and speed of a training step, by precision.

    python benchmarks/amp.py [--arch resnet50] [--batch-size 64] [--size 224] [--steps 20] [--json FILE]

The claim to measure: half the memory, a fifth faster. A step is forward, loss, backward and an SGD step on
one batch of noise that stays where it is, so that no loader has a part in it.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import models

import machine

CLASSES = 1000
WARMUP_STEPS = 3
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Row:
    """One precision.

    Attributes:
        name: fp32, bf16 or fp16.
        seconds: time of each step; empty if the precision was not measured.
        activation_bytes: bytes that autograd keeps from the forward pass for the backward pass.
        peak_bytes: highest total of the device's allocator during a step, or None on the CPU.
        loss: loss of the last step, or None if the precision was not measured.
        missing: reason why the precision was not measured, or "".
    """

    name: str
    seconds: list[float]
    activation_bytes: int
    peak_bytes: int | None
    loss: float | None
    missing: str = ""

    @property
    def memory(self) -> int:
        """Bytes that a step took: the allocator's peak, or on the CPU the activations."""
        return self.activation_bytes if self.peak_bytes is None else self.peak_bytes


def run(arch: str, batch_size: int, size: int, steps: int, device: torch.device) -> list[Row]:
    """Trains `steps` timed steps in each precision, fp32 first, each from the same weights."""
    rows = []
    for name in DTYPES:
        missing = unsupported(name, device)
        if missing:
            rows.append(Row(name, [], 0, None, None, missing))
            continue
        rows.append(measure(name, arch, batch_size, size, steps, device))
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()  # the next one's peak is its own
    return rows


def cpu_has(name: str) -> bool:
    """Returns whether this CPU multiplies in the precision `name`; without that it only stores less."""
    flags = {"bf16": ("avx512_bf16", "amx_bf16", "bf16"), "fp16": ("avx512_fp16", "amx_fp16", "asimdhp")}
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = {word for line in lines if line.startswith(("flags", "Features")) for word in line.split()}
    return any(flag in found for flag in flags.get(name, ()))


def unsupported(name: str, device: torch.device) -> str:
    """Why the precision `name` can't be measured on `device`; "" if it can."""
    if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        return "this GPU doesn't compute in bf16"
    if name == "fp16" and device.type == "cpu" and not cpu_has(name):
        return "this CPU doesn't compute in fp16"
    return ""


def measure(name: str, arch: str, batch_size: int, size: int, steps: int, device: torch.device) -> Row:
    """Seconds and bytes of training steps in one precision."""
    torch.manual_seed(0)
    model = models.get_model(arch, weights=None, num_classes=CLASSES).to(device)
    model = model.to(memory_format=torch.channels_last)
    images = torch.randn(batch_size, 3, size, size, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (batch_size,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")
    dtype = DTYPES[name]

    def step() -> torch.Tensor:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    with saved_bytes() as sizes:
        step()
    for _ in range(WARMUP_STEPS - 1):
        step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds, loss = [], images.new_zeros(())
    for _ in range(steps):
        start = time.perf_counter()
        loss = step()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return Row(name, seconds, sum(sizes.values()), peak, float(loss.item()))


@contextmanager
def saved_bytes() -> Iterator[dict[int, int]]:
    """Gives a dict that collects the bytes of each storage, by address, that autograd keeps within `with`;
    parameters are not counted."""
    found: dict[int, int] = {}
    alive = []  # an address is a storage's own only while it lives

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, nn.Parameter):
            storage = tensor.untyped_storage()
            alive.append(storage)
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def notes(rows: list[Row], device: torch.device) -> list[str]:
    """Explains the measurements in sentences."""
    texts = [f"{row.name}: not measured, as {row.missing}." for row in rows if row.missing]
    if device.type != "cpu":
        return [*texts, "Peak: of torch's allocator. Weights, gradients and optimizer state stay fp32."]
    texts.append(
        "On a CPU memory is that of activations alone. Weights, gradients and optimizer state stay fp32;"
        " autocast adds copies of the weights, which a small batch doesn't make up for."
    )
    if not cpu_has("bf16"):
        texts.append(
            "This CPU has no bf16 instructions (avx512_bf16, amx_bf16): numbers are stored in bf16 and"
            " multiplied in fp32, so that a step is at best as fast."
        )
    return [*texts, "These figures say nothing about a GPU."]


def table(rows: list[Row], batch_size: int) -> list[str]:
    """The rows as lines of text."""
    first = rows[0]
    headings = ("images/s", "of fp32", "activations MB", "peak MB", "memory of fp32", "loss")
    lines = [f"{'precision':<10}" + "".join(f"{heading:>16}" for heading in headings)]
    for row in rows:
        if row.missing:
            continue
        median = statistics.median(row.seconds)
        cells = (
            f"{batch_size / median:,.1f}",
            f"{statistics.median(first.seconds) / median:.2f} ×",
            f"{row.activation_bytes / 1e6:,.0f}",
            "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:,.0f}",
            f"{row.memory / first.memory:.2f} ×",
            f"{row.loss:.3f}",
        )
        lines.append(f"{row.name:<10}" + "".join(f"{cell:>16}" for cell in cells))
    return lines


def main() -> None:
    here = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--arch", default="resnet50", choices=models.list_models(module=models), metavar="NAME"
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="pixels of an image's side")
    parser.add_argument("--steps", type=int, default=20, help="timed, in each precision")
    parser.add_argument("--device", default=here, type=torch.device, help=f"default: {here}")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    device: torch.device = arguments.device
    rows = run(arguments.arch, arguments.batch_size, arguments.size, arguments.steps, device)
    name = f"CPU, {torch.get_num_threads()} threads"
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    print(
        f"{arguments.arch}, {arguments.batch_size} images of {arguments.size}×{arguments.size} a step;"
        f" {name}; torch {torch.__version__}"
    )
    print("\n".join([*table(rows, arguments.batch_size), *notes(rows, device)]))
    if arguments.json is not None:
        facts: dict[str, Any] = {
            name: str(value) for name, value in vars(arguments).items() if name != "json"
        }
        facts |= {"machine": machine.describe(), "torch": torch.__version__}
        facts["rows"] = [asdict(row) for row in rows]
        machine.keep(facts, arguments.json)


if __name__ == "__main__":
    main()
