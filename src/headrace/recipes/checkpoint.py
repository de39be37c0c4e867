"""Checkpoints: whole or absent, and loaded without running anything that is in them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

import headrace
from headrace.recipes import ranks
from headrace.recipes.config import Recipe, option

VERSION = 1
# Options that may differ when a run is resumed: where and how, but not what is trained.
MAY_CHANGE = {
    *("data", "out", "accumulate", "checkpointing", "channels_last", "compile", "workers", "deterministic"),
    *("device", "resume", "checkpoint_every", "log_every", "tensorboard", "metrics_port"),
}
LAST, BEST, PREEMPTED = "last.pt", "best.pt", "preempted"


def save(state: dict[str, Any], path: Path) -> None:
    """Writes `state` to a temporary file, to the disk, then under its name: a crash or a full disk leaves the
    checkpoint that was there.
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
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too
    finally:
        os.close(folder)


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


def to_resume(resume: str, out: Path) -> Path | None:
    """The checkpoint to resume from, or None. Raises ConfigError if a run would be overwritten."""
    last = out / LAST
    # torchrun starts the same command again when a rank was lost.
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if resume == "auto" or (resume == "never" and restarted):
        return last if last.exists() else None
    if resume != "never":
        return Path(resume)
    if last.exists():
        raise headrace.ConfigError(
            f"{last} is there already. Pass --resume auto to resume that run, or another --out."
        )
    return None


def check_same(theirs: dict[str, Any], recipe: Recipe, path: Path | None) -> None:
    """Raises ConfigError if the checkpoint at `path`, with the recipe `theirs`, is of another training."""
    ours = recipe.to_json()
    for name in sorted(ours.keys() - MAY_CHANGE):
        if theirs[name] != ours[name]:
            was, now = (
                f"without {option(name)}" if value is None else f"with {option(name)} {value}"
                for value in (theirs[name], ours[name])
            )
            raise headrace.ConfigError(
                f"--resume: {path} was made {was}, not {now}. For another training take another --out."
            )


def random_states(device: torch.device) -> list[dict[str, torch.Tensor]]:
    """States of torch's generators, by rank."""
    mine = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        mine["cuda"] = torch.cuda.get_rng_state(device)
    return ranks.gather(mine)


def set_random_states(states: list[dict[str, torch.Tensor]], device: torch.device, seed: int) -> None:
    """Restores this rank's generators. A rank without a state is seeded: what a model draws (dropout) can't
    be the same on another number of ranks.
    """
    rank, _ = ranks.world()
    if rank >= len(states):
        torch.manual_seed(seed + 1_000_003 * rank)
        return
    torch.set_rng_state(states[rank]["cpu"])
    if device.type == "cuda" and "cuda" in states[rank]:
        torch.cuda.set_rng_state(states[rank]["cuda"], device)
