"""What a training run is: plain values, checked once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

import headrace

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Recipe:
    """One run. The same on every rank.

    Messages name the command's options: `--batch-size` is `batch_size` here.

    Attributes:
        data: a folder with `train` and `val`, each of class folders or a pack.
        out: where checkpoints and logs go.
        arch: a model of torchvision, or "timm/NAME".
        epochs: passes over the training pictures.
        batch_size: pictures of one optimizer step, over all ranks and parts; what is learned from doesn't
            depend on how many share it.
        accumulate: parts that each rank's share of a batch is done in, one after the other.
        optimizer: "sgd" (momentum 0.9, Nesterov) or "adamw".
        lr: highest learning rate. None: 0.1 × batch_size / 256 for SGD (Goyal et al. 2017, arXiv 1706.02677),
            1e-3 × batch_size / 1024 for AdamW (Touvron et al. 2021, arXiv 2012.12877).
        weight_decay: of parameters with two or more dimensions. None: 1e-4 for SGD, 0.05 for AdamW.
        warmup_epochs: of rising from 0 to `lr`; then it falls to 0 as a cosine. None: 5, or half of `epochs`
            if that is less.
        label_smoothing: 0 to 1.
        ema: decay per step of an average of the weights, which is then what is evaluated; 0: none.
        size, val_resize: pixels of a training and evaluation crop; of the shorter side before the latter.
        start_size: of the crops in the first epoch, growing to `size` at three quarters of the epochs; None:
            `size` throughout.
        precision: of autocast: "fp32" (none), "bf16", or "fp16" (with a GradScaler).
        checkpointing: keep no activations inside blocks, compute them again in the backward pass.
        channels_last: memory format of model and pictures.
        compile: with torch.compile.
        workers: of each loader on each rank; None: the loader decides.
        seed: of weights, order and random parameters.
        deterministic: with torch.use_deterministic_algorithms.
        device: None: the accelerator if there is one, else the CPU.
        resume: "auto": from `out`/last.pt if it is there; "never": refuse if it is there; or a file.
        checkpoint_every: steps between checkpoints beside those at the ends of epochs; 0: none.
        log_every: steps between lines of the log.
        tensorboard: write scalars to `out` too.
        metrics_port: rank r of a machine serves its loaders' figures to Prometheus at 127.0.0.1, on this port
            + r; None: it doesn't.
    """

    data: Path
    out: Path
    arch: str = "resnet50"
    epochs: int = 90
    batch_size: int = 256
    accumulate: int = 1
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float | None = None
    weight_decay: float | None = None
    warmup_epochs: float | None = None
    label_smoothing: float = 0.1
    ema: float = 0.0
    size: int = 224
    val_resize: int = 256
    start_size: int | None = None
    precision: Precision = "fp32"
    checkpointing: bool = False
    channels_last: bool = False
    compile: bool = False
    workers: int | None = None
    seed: int = 0
    deterministic: bool = False
    device: str | None = None
    resume: str = "never"
    checkpoint_every: int = 0
    log_every: int = 50
    tensorboard: bool = False
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "size", "val_resize", "log_every"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "must be 1 or more")
        for name in ("checkpoint_every", "seed", "weight_decay", "workers"):
            _check((getattr(self, name) or 0) >= 0, name, getattr(self, name), "must be 0 or more")
        _check(
            0 <= self.warmup < self.epochs,
            "warmup_epochs",
            self.warmup_epochs,
            f"must be 0 or more, and less than --epochs ({self.epochs})",
        )
        _check(self.precision in DTYPES, "precision", self.precision, f"must be one of {', '.join(DTYPES)}")
        _check(self.optimizer in ("sgd", "adamw"), "optimizer", self.optimizer, "must be sgd or adamw")
        _check(self.lr is None or self.lr > 0, "lr", self.lr, "must be above 0")
        _check(0 <= self.label_smoothing < 1, "label_smoothing", self.label_smoothing, "must be in [0, 1)")
        _check(0 <= self.ema < 1, "ema", self.ema, "must be in [0, 1); 0.999 averages over 1,000 steps")
        _check(
            self.val_resize >= self.size,
            "val_resize",
            self.val_resize,
            f"must be at least --size ({self.size})",
        )
        _check(
            self.start_size is None or 32 <= self.start_size <= self.size,
            "start_size",
            self.start_size,
            f"must be from 32 to --size ({self.size})",
        )
        if self.compile and self.checkpointing:
            raise headrace.ConfigError(
                "--checkpointing can't be had with --compile, which decides itself what is computed again."
            )

    @property
    def dtype(self) -> torch.dtype | None:
        """Of autocast; None: no autocast."""
        return DTYPES[self.precision]

    @property
    def peak_lr(self) -> float:
        """`lr`, or what stands for None."""
        if self.lr is not None:
            return self.lr
        return 0.1 * self.batch_size / 256 if self.optimizer == "sgd" else 1e-3 * self.batch_size / 1024

    @property
    def warmup(self) -> float:
        """`warmup_epochs`, or what stands for None."""
        return min(5.0, self.epochs / 2) if self.warmup_epochs is None else self.warmup_epochs

    @property
    def decay(self) -> float:
        """`weight_decay`, or what stands for None."""
        if self.weight_decay is not None:
            return self.weight_decay
        return 1e-4 if self.optimizer == "sgd" else 0.05

    def part_size(self, world_size: int) -> int:
        """Pictures that one rank has in one forward pass."""
        parts = world_size * self.accumulate
        _check(
            self.batch_size % parts == 0,
            "batch_size",
            self.batch_size,
            f"must divide by ranks × --accumulate ({world_size} × {self.accumulate}); it counts the pictures"
            " of a step over all of them",
        )
        return self.batch_size // parts

    def size_of(self, epoch: int) -> int:
        """Pixels of the training crops in epoch number `epoch`: multiples of 32 on the way to `size`."""
        if self.start_size is None:
            return self.size
        share = min(1.0, epoch / max(1.0, 0.75 * (self.epochs - 1)))
        size = self.start_size + share * (self.size - self.start_size)
        return self.size if share == 1.0 else max(32, round(size / 32) * 32)

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return {name: str(v) if isinstance(v, Path) else v for name, v in asdict(self).items()}


def option(name: str) -> str:
    """What the command calls the attribute `name` of a Recipe."""
    return "--" + name.replace("_", "-")


def _check(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise headrace.ConfigError(f"{option(name)} ({value}) {rule}.")
