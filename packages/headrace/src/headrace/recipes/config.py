"""The settings of a training run: plain values, checked once, and the options of `headrace train`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import headrace

# Names of torch's dtypes for autocast, by precision, or None for no autocast.
DTYPES = {"fp32": None, "bf16": "bfloat16", "fp16": "float16"}
OUT = Path("runs/imagenet")
MODEL, IMAGES, MACHINE, RUN = "Model and optimizer", "Images", "Speed and memory", "Checkpoints and logs"


def _option(default: Any, panel: str, text: str) -> Any:
    return field(default=default, metadata={"rich_help_panel": panel, "help": text})


@dataclass(frozen=True)
class Recipe:
    """One training run, the same on every rank. The option `--batch-size` of `headrace train` is `batch_size`
    here; `headrace train --help` describes all of them.

    Attributes:
        data: folder with `train` and `val`, each of class folders or a pack.

    Raises:
        ConfigError: a value is invalid.
    """

    data: Path
    arch: str = _option("resnet50", MODEL, "Name of a torchvision classifier, or timm/NAME.")
    epochs: int = _option(90, MODEL, "Passes over the training images.")
    batch_size: int = _option(256, MODEL, "Images per optimizer step, over all GPUs.")
    optimizer: str = _option("sgd", MODEL, "sgd (momentum 0.9, Nesterov) or adamw.")
    # Goyal et al. 2017, arXiv 1706.02677; Touvron et al. 2021, arXiv 2012.12877.
    lr: float | None = _option(
        None, MODEL, "Peak learning rate. Default: 0.1 × batch/256 for sgd, 1e-3 × batch/1024 for adamw."
    )
    weight_decay: float | None = _option(
        None, MODEL, "Weight decay, except of biases and norms. Default: 1e-4 for sgd, 0.05 for adamw."
    )
    warmup_epochs: float | None = _option(
        None, MODEL, "Epochs of linear warm-up before the cosine decay. Default: 5, or half of the epochs."
    )
    label_smoothing: float = _option(0.1, MODEL, "Label smoothing, 0 to 1; 0 disables it.")
    ema: float = _option(
        0.0, MODEL, "Decay per step of an average of the weights, which is evaluated instead; 0 disables it."
    )
    size: int = _option(224, IMAGES, "Side of a crop in pixels.")
    val_resize: int = _option(256, IMAGES, "Shorter side before the validation crop, in pixels.")
    workers: int | None = _option(None, IMAGES, "Workers of each loader. Default: the loader decides.")
    precision: str = _option("fp32", MACHINE, "Autocast: fp32 (none), bf16, or fp16 with a GradScaler.")
    accumulate: int = _option(1, MACHINE, "Gradient-accumulation steps; the batch stays the same.")
    channels_last: bool = _option(False, MACHINE, "Channels-last memory format: faster on GPUs.")
    compile: bool = _option(False, MACHINE, "Use torch.compile (slow first step).")
    deterministic: bool = _option(False, MACHINE, "Use deterministic algorithms; slower.")
    device: str | None = _option(None, MACHINE, "Device. Default: the accelerator, or else the CPU.")
    out: Path = _option(OUT, RUN, "Folder of checkpoints and logs.")  # noqa: RUF009  # a Path is frozen
    resume: str = _option(
        "never", RUN, "auto (from OUT/last.pt if it exists), a file, or never (reject an OUT that has a run)."
    )
    checkpoint_every: int = _option(
        0, RUN, "Steps between checkpoints, in addition to one after each epoch; 0 disables them."
    )
    log_every: int = _option(50, RUN, "Steps between log lines.")
    metrics_port: int | None = _option(
        None, RUN, "Port on 127.0.0.1 for Prometheus; the local rank is added to it."
    )
    seed: int = _option(0, RUN, "Random seed of weights, data order and augmentation.")

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "size", "val_resize", "log_every"):
            self.require(name, getattr(self, name) >= 1, "must be 1 or more")
        for name in ("checkpoint_every", "seed", "weight_decay", "workers"):
            self.require(name, (getattr(self, name) or 0) >= 0, "must be 0 or more")
        short = 0 <= self.warmup < self.epochs
        self.require("warmup_epochs", short, f"must be 0 or more, and less than --epochs ({self.epochs})")
        self.require("precision", self.precision in DTYPES, f"must be one of {', '.join(DTYPES)}")
        self.require("optimizer", self.optimizer in ("sgd", "adamw"), "must be sgd or adamw")
        self.require("lr", self.lr is None or self.lr > 0, "must be above 0")
        self.require("label_smoothing", 0 <= self.label_smoothing < 1, "must be in [0, 1)")
        self.require("ema", 0 <= self.ema < 1, "must be in [0, 1); 0.999 averages over 1,000 steps")
        self.require("val_resize", self.val_resize >= self.size, f"must be at least --size ({self.size})")

    def require(self, name: str, holds: bool, rule: str) -> None:
        """Raises ConfigError, which says what the attribute `name` must be, unless `holds`."""
        if not holds:
            raise headrace.ConfigError(f"{option(name)} ({getattr(self, name)}) {rule}.")

    @property
    def peak_lr(self) -> float:
        """Peak learning rate: `lr` or its default."""
        if self.lr is not None:
            return self.lr
        return 0.1 * self.batch_size / 256 if self.optimizer == "sgd" else 1e-3 * self.batch_size / 1024

    @property
    def warmup(self) -> float:
        """Epochs of warm-up: `warmup_epochs` or its default."""
        return min(5.0, self.epochs / 2) if self.warmup_epochs is None else self.warmup_epochs

    def part_size(self, world_size: int) -> int:
        """Images that one rank has in one forward pass. Raises ConfigError if the batch doesn't divide."""
        parts = world_size * self.accumulate
        rule = (
            f"must divide by ranks × --accumulate ({world_size} × {self.accumulate}); it counts the images of"
            " a step over all of them"
        )
        self.require("batch_size", self.batch_size % parts == 0, rule)
        return self.batch_size // parts

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return {name: str(v) if isinstance(v, Path) else v for name, v in asdict(self).items()}


def option(name: str) -> str:
    """The command's name for the attribute `name` of a Recipe."""
    return "--" + name.replace("_", "-")
