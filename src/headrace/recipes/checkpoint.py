"""Checkpoints: whole or absent, and loaded without running anything that is in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

import headrace
from headrace.recipes.config import Recipe, option

VERSION = 1
LAST, BEST, PREEMPTED = "last.pt", "best.pt", "preempted"
# Options that may differ when a run is resumed: where and how, but not what is trained.
MAY_CHANGE = {
    *("data", "out", "accumulate", "channels_last", "compile", "workers", "deterministic"),
    *("device", "resume", "checkpoint_every", "log_every", "metrics_port"),
}


def save(state: dict[str, Any], path: Path) -> None:
    """Writes `state` under another name, to the disk, and renames it: after a crash or on a full disk the
    checkpoint that was there is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any]:
    """The state that `save` wrote, on the CPU. Raises ConfigError if it is missing or damaged."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise headrace.ConfigError(f"--resume: {path} isn't there.") from error
    except Exception as error:  # a damaged file makes torch raise anything: KeyError, UnicodeDecodeError, …
        raise headrace.ConfigError(f"--resume: {path} isn't a checkpoint, or is damaged: {error}") from error
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise headrace.ConfigError(
            f"--resume: {path} isn't a checkpoint of `headrace train`, version {VERSION}."
        )
    return state


def to_resume(recipe: Recipe) -> tuple[Path | None, dict[str, Any]]:
    """The checkpoint to resume from and its state; None and {}: the run starts from the beginning.

    Raises:
        ConfigError: a run would be overwritten, or the checkpoint is unusable or of another training.
    """
    last: Path | None = recipe.out / LAST
    assert last is not None
    # torchrun starts the same command again when a rank was lost.
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if recipe.resume not in ("auto", "never"):
        last = Path(recipe.resume)
    elif not last.exists():
        return None, {}
    elif recipe.resume == "never" and not restarted:
        raise headrace.ConfigError(
            f"{last} is there already. Pass --resume auto to resume that run, or another --out."
        )
    state, ours = load(last), recipe.to_json()
    for name in sorted(ours.keys() - MAY_CHANGE):
        was, now = (
            f"without {option(name)}" if value is None else f"with {option(name)} {value}"
            for value in (state["recipe"][name], ours[name])
        )
        if was != now:
            raise headrace.ConfigError(
                f"--resume: {last} was made {was}, not {now}. For another training take another --out."
            )
    return last, state
