"""Small models and data for tests of the recipe; as a script, the headrace command with these models:
`python tiny.py train DATA …`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision.models._api import register_model  # documented, though not public

from headrace.recipes import Recipe
from support.jpegs import image_folder

# Called with the number of each training pass of a tiny model, from 1, before it; of others, likewise.
before_pass: list[Callable[[int], None]] = []
before_evaluation_pass: list[Callable[[int], None]] = []


class Tiny(nn.Module):
    """Two convolutions.

    Args:
        norm: makes the layer between them.
    """

    def __init__(self, num_classes: int, norm: Callable[[int], nn.Module], dropout: float = 0.0) -> None:
        super().__init__()
        self.passes = [0, 0]
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2),
            norm(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(16, num_classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.passes[self.training] += 1
        for call in before_pass if self.training else before_evaluation_pass:
            call(self.passes[self.training])
        result: torch.Tensor = self.layers(images)
        return result


@register_model()
def tiny_batchnorm(weights: None = None, num_classes: int = 3) -> nn.Module:
    """Statistics of a batch, and dropout: what a resumed run must have, too."""
    return Tiny(num_classes, nn.BatchNorm2d, dropout=0.3)


@register_model()
def tiny_groupnorm(weights: None = None, num_classes: int = 3) -> nn.Module:
    """Each image is on its own: how a batch is split changes nothing but the order of sums."""
    return Tiny(num_classes, lambda channels: nn.GroupNorm(2, channels))


def data(root: Path, train: int = 50, val: int = 25) -> Path:
    """Images of three classes, in train and val."""
    image_folder(root / "train", train, seed=0, side=48)
    image_folder(root / "val", val, seed=1, side=48)
    return root


def recipe(data: Path, out: Path, **changes: Any) -> Recipe:
    """A short run on small images, the same bits each time."""
    values: dict[str, Any] = {
        "data": data,
        "out": out,
        "arch": "tiny_batchnorm",
        "epochs": 3,
        "batch_size": 12,
        "warmup_epochs": 0.5,
        "lr": 0.05,
        "size": 32,
        "val_resize": 40,
        "log_every": 2,
        "deterministic": True,
        "device": "cpu",
        "ema": 0.5,
    }
    return Recipe(**{**values, **changes})


def options(recipe: Recipe) -> list[str]:
    """`recipe` as arguments of the command."""
    arguments = ["train", str(recipe.data)]
    for name, value in recipe.to_json().items():
        option = "--" + name.replace("_", "-")
        if name == "data" or value is None or value is False:
            continue
        arguments += [option] if value is True else [option, str(value)]
    return arguments


def checkpoint(out: Path, name: str = "last.pt") -> dict[str, Any]:
    """Loaded as anyone may."""
    state: dict[str, Any] = torch.load(out / name, weights_only=True)
    return state


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest, over all tensors of two state dicts."""
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def stop_at(passes: int, signals: tuple[int, ...] = (signal.SIGTERM,)) -> Callable[[int], None]:
    """Signals from outside, during training pass number `passes`."""

    def send(number: int) -> None:
        if number == passes:
            for each in signals:
                os.kill(os.getpid(), each)

    return send


def die_at(passes: int) -> Callable[[int], None]:
    """Returns a function that kills the process as the kernel's out-of-memory killer would."""

    def die(number: int) -> None:
        if number == passes:
            os.kill(os.getpid(), signal.SIGKILL)

    return die


if __name__ == "__main__":
    from headrace.cli import main

    here, first = os.environ.get("RANK", "0"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if os.environ.get("HEADRACE_ACCELERATOR") == "simulated":
        import accelerator

        accelerator.load().configure(seed=int(here), mean_delay=1e-4)
    if os.environ.get("STOP_RANK") == here:
        signals = (signal.Signals[os.environ.get("STOP_BY", "SIGTERM")],)
        before_pass.append(stop_at(int(os.environ["STOP_AT"]), signals))
    if os.environ.get("DIE_RANK") == here and first:
        before_pass.append(die_at(int(os.environ["DIE_AT"])))
    main()
