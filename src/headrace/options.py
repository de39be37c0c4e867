"""What Headrace's DataLoader takes beyond torch's arguments: checked here, once."""

from __future__ import annotations

from typing import Any, Literal, get_args

from headrace.errors import ConfigError
from headrace.order.shard import Remainder

OnError = Literal["raise", "skip", "replace"]
WorkerKind = Literal["auto", "thread", "process"]
OnWorkerDeath = Literal["respawn", "raise"]

# Share of the available memory that batches may take unless the user says otherwise: other processes of the
# job (one loader per GPU, up to 8 of them) and the page cache need the rest.
DEFAULT_MEMORY_SHARE = 1 / 8


# The native library's table of JPEG decoders, in order of preference; a test compares the two.
DECODERS = ("headrace", "libjpeg-restart", "libjpeg-crop", "libjpeg-full")


class LeftOpen(int):
    """A number that the loader chose because its user left it open. It reads as any int; given to another
    loader, as Lightning does it with the attributes of one, it leaves the choice to that one again."""


def check_ranks(rank: Any, world_size: Any, remainder: Any) -> None:
    """Raises ConfigError for a share of the epoch that can't be given out; see `headrace.DataLoader`."""
    if remainder not in get_args(Remainder):
        raise ConfigError(f"remainder ({remainder!r}) must be 'pad', 'drop' or 'exact'.")
    if rank == "auto" or rank is None:
        alone = rank is None and _is_int(world_size) and world_size == 1
        if world_size is not None and not alone:
            raise ConfigError(
                f"world_size ({world_size!r}) needs a rank from 0 to world_size - 1, not {rank!r};"
                " rank='auto' finds both."
            )
        return
    if not (_is_int(rank) and _is_int(world_size) and 0 <= rank < world_size):
        raise ConfigError(
            f"rank ({rank!r}) and world_size ({world_size!r}) must be ints with 0 <= rank < world_size, or"
            " rank='auto' alone."
        )


def check_options(
    memory_budget: Any, on_error: Any, seed: Any, decoder: Any, worker_kind: Any, on_worker_death: Any
) -> None:
    """Raises ConfigError for a value that can't be obeyed; see `headrace.DataLoader` for what each means."""
    if on_error not in get_args(OnError):
        raise ConfigError(f"on_error ({on_error!r}) must be 'raise', 'skip' or 'replace'.")
    if worker_kind not in get_args(WorkerKind):
        raise ConfigError(f"worker_kind ({worker_kind!r}) must be 'auto', 'thread' or 'process'.")
    if on_worker_death not in get_args(OnWorkerDeath):
        raise ConfigError(f"on_worker_death ({on_worker_death!r}) must be 'respawn' or 'raise'.")
    if not _is_int(memory_budget) or memory_budget < 1:
        raise ConfigError(
            f"memory_budget ({memory_budget!r}) must be a number of bytes, 1 or more; leave it unset for an"
            " eighth of the available memory."
        )
    if seed is not None and not (_is_int(seed) and 0 <= seed < 2**64):
        raise ConfigError(
            f"seed ({seed!r}) must be an int from 0 to 2**64 - 1, or None to draw one per epoch."
        )

    names = (*DECODERS, "pillow")
    if decoder != "auto" and not (isinstance(decoder, str) and set(decoder.split(",")) <= set(names)):
        raise ConfigError(
            f"decoder ({decoder!r}) must be 'auto', or of {', '.join(names)}, joined by commas."
        )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
