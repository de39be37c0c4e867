"""Models of torchvision or timm, and activation checkpointing for them."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torchvision import models

import headrace

TIMM = "timm/"
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
# Their side branches' outputs would need losses of their own.
ONE_OUTPUT: dict[str, dict[str, Any]] = {
    name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")
}


def builder(arch: str) -> Callable[[int], nn.Module]:
    """A function from a number of classes to a classifier with random weights. Raises ConfigError if there is
    no such model.

    Args:
        arch: classifier of `torchvision.models`, or "timm/NAME".
    """
    if arch.startswith(TIMM):
        return _timm(arch.removeprefix(TIMM))
    try:
        make = models.get_model_builder(arch)
    except ValueError as error:
        raise headrace.ConfigError(
            f"--arch {arch} isn't a model of torchvision{_similar(arch)}; {TIMM}NAME is one of timm's."
        ) from error
    # torchvision's classifiers are modules of this package, its other models are packages in it.
    kind, dot, _ = make.__module__.partition("torchvision.models.")[2].partition(".")
    if dot:
        raise headrace.ConfigError(
            f"--arch {arch} is a model for {kind.replace('_', ' ')}, not a classifier of images."
        )
    return lambda classes: make(weights=None, num_classes=classes, **ONE_OUTPUT.get(make.__name__, {}))


def checkpoint_blocks(arch: str, model: nn.Module) -> None:
    """Lets blocks keep only their input in the forward pass; the backward pass recomputes the rest. Raises
    ConfigError if the blocks of `arch` aren't known. A later copy of the model would share their weights.
    """
    if arch.startswith(TIMM):
        model.set_grad_checkpointing()  # type: ignore[operator]
        return
    for block in _blocks(arch, model):
        _checkpoint(block)


def _similar(arch: str) -> str:
    names = difflib.get_close_matches(arch, models.list_models(module=models), 3)
    return f" ({', '.join(names)}?)" if names else ""


def _timm(name: str) -> Callable[[int], nn.Module]:
    try:
        timm = importlib.import_module("timm")
    except ImportError as error:
        raise headrace.ConfigError(f"--arch {TIMM}{name} needs timm: pip install timm.") from error
    if not timm.is_model(name):
        raise headrace.ConfigError(
            f"--arch {TIMM}{name} isn't a model of timm; `timm.list_models()` lists them."
        )
    return lambda classes: timm.create_model(name, num_classes=classes)


def _blocks(arch: str, model: nn.Module) -> list[nn.Module]:
    if isinstance(model, models.ResNet):
        stages = (model.layer1, model.layer2, model.layer3, model.layer4)
        return [block for stage in stages for block in stage]
    if isinstance(model, models.VisionTransformer):
        return list(model.encoder.layers)
    raise headrace.ConfigError(
        f"--checkpointing: the blocks of {arch} aren't known; torchvision's ResNets and Vision Transformers,"
        " and timm's models, have it."
    )


def _checkpoint(block: nn.Module) -> None:
    forward: Callable[..., Any] = block.forward
    norms = [module for module in block.modules() if isinstance(module, BATCH_NORMS)]

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _unmoved(norms)

    def checkpointed(x: torch.Tensor) -> Any:
        if not torch.is_grad_enabled():
            return forward(x)
        return checkpoint(forward, x, use_reentrant=False, context_fn=contexts)

    block.forward = checkpointed


@contextmanager
def _unmoved(norms: Iterable[Any]) -> Iterator[None]:
    """Keeps running statistics unchanged: the second pass over a batch must not count it twice."""
    before = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, _, _ in before:
        # Not track_running_stats=False: the second pass must save as many tensors as the first.
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, batches in before:
            norm.momentum, norm.num_batches_tracked = momentum, batches
