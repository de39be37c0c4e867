"""The state of a loader as a dict that can be saved, checked and loaded."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from headrace.errors import ConfigError
from headrace.order.epoch import (
    UNDRAWN,
    EpochStart,
    Place,
    Position,
    StreamState,
    states_as_text,
    states_from_text,
)

State = dict[str, Any]
VERSION = 2
# Version 1 has the generators as they were before the seed of the workers was drawn.
READABLE = (1, VERSION)
# What is None in a state between epochs.
UNDECIDED = ("order_seed", "order_epoch", "random_seed", "random_epoch")
# Keys that states of this version haven't had from the first.
NEWER = {"before": (), "ended": (), "turn": None, "_num_yielded": None}


class Identity(TypedDict):
    """The properties that must be the same when a state is loaded."""

    dataset: str
    order: str
    seed: int | None


def to_state(start: EpochStart, position: Position, reached: int, identity: Identity) -> State:
    """The place of an epoch that was started as a dict of ints, strings and None, the same keys always; what
    user objects gave is in tuples, so that torch.distributed.checkpoint saves it whole. `reached` is the
    position in the order, of all ranks."""
    order_key = start.order or start.draw_order()
    return {
        "version": VERSION,
        **identity,
        "epoch": start.epoch,
        "position": reached,
        "order_seed": order_key[0],
        "order_epoch": order_key[1],
        "random_seed": start.random_key[0],
        "random_epoch": start.random_key[1],
        "generators": states_as_text(start.generators),
        "sampler_epoch": start.sampler_epoch,
        "sampler": (position.sampler_state,),
        **_streams_as_state(position.streams),
        "turn": position.turn,
        # Accelerate lowers this number, which torchdata's states have, if it is ahead of the script.
        "_num_yielded": reached,
    }


def state_between(streams: Mapping[int, StreamState], epoch: int, identity: Identity) -> State:
    """The state before an epoch of which nothing is decided yet; `streams` are the ends of the one before."""
    start, position = EpochStart(epoch, UNDRAWN, UNDRAWN), Position(streams=dict(streams))
    return {**to_state(start, position, 0, identity), **dict.fromkeys(UNDECIDED)}


def _streams_as_state(streams: Mapping[int, StreamState]) -> State:
    ordered = sorted(streams.items(), key=lambda item: item[0])
    return {
        "streams": tuple((worker, state) for worker, (state, _) in ordered),
        "before": tuple(worker for worker, (_, place) in ordered if place == "before"),
        "ended": tuple(worker for worker, (_, place) in ordered if place == "after"),
    }


def streams_of(state: State) -> dict[int, StreamState]:
    """The states of the streams, by worker."""
    places: dict[int, Place] = {
        **dict.fromkeys(state["before"], "before"),
        **dict.fromkeys(state["ended"], "after"),
    }
    return {worker: (each, places.get(worker, "within")) for worker, each in state["streams"]}


def has_started(state: State) -> bool:
    """Returns whether the state is that of an epoch that had started."""
    return state["order_seed"] is not None


def start_of(state: State) -> EpochStart:
    """Returns the start of a state's epoch, which had started, as far as the state has it."""
    return EpochStart(
        epoch=state["epoch"],
        order=(state["order_seed"], state["order_epoch"]),
        random_key=(state["random_seed"], state["random_epoch"]),
        position=state["position"],
        resumed=True,
        generators=states_from_text(state["generators"]),
        sampler_epoch=state["sampler_epoch"],
        sampler_state=state["sampler"][0],
        turn=state["position"] if state["turn"] is None else state["turn"],
    )


def redraws(state: State) -> bool:
    """Returns whether the workers' seed is drawn from the state's generators before the sampler starts."""
    # Version 1 drew none for kept worker processes, whose epochs have had numbers from 1.
    return state["version"] == 1 and (state["seed"] is not None or state["random_epoch"] == 0)


def checked(state: Any, identity: Identity) -> State:
    """A state that was saved, with all keys of this version; a seed of None in `identity` fits any. Raises
    ConfigError if it is of another dataset, order or seed, or isn't a state of a loader."""
    if not isinstance(state, dict):
        raise ConfigError(f"state_dict must be a dict that state_dict() gave, not {type(state).__name__}.")
    if state.get("version") not in READABLE:
        raise ConfigError(
            f"This isn't a state of a headrace.DataLoader of version {VERSION}: its version is"
            f" {state.get('version')!r}."
        )
    state = {**state, **{name: state.get(name, old) for name, old in NEWER.items()}}
    _check_values(state)
    if state["_num_yielded"] not in (None, state["position"]):
        raise ConfigError(
            "This state is of a place ahead of the script, as Accelerate takes batches in advance with"
            " dispatch_batches=True, and loading it would lose samples. Save with dispatch_batches=False, or"
            " resume by accelerator.skip_first_batches(loader, number of batches)."
        )
    different = [
        f"{name}: the state has {state[name]!r}, this loader {value!r}"
        for name, value in identity.items()
        if state[name] != value and (name != "seed" or value is not None)
    ]
    if different:
        raise ConfigError(
            f"The state can't be loaded into this loader; {'; '.join(different)}. Make the loader as it was"
            " when the state was saved (batch size, workers and ranks may differ)."
        )
    return {**state, "sampler": tuple(state["sampler"]), **_streams_as_state(streams_of(state))}


def _check_values(state: State) -> None:
    """Refuses what `to_state` can't have given: it may have been changed on its way."""
    started = state.get("order_seed") is not None
    sound: dict[str, Callable[[Any], bool]] = {
        **dict.fromkeys(("dataset", "order"), lambda value: isinstance(value, str)),
        **dict.fromkeys(("epoch", "position"), _is_number),
        **dict.fromkeys(UNDECIDED, _is_number if started else lambda value: value is None),
        **dict.fromkeys(
            ("seed", "sampler_epoch", "turn", "_num_yielded"),
            lambda value: value is None or _is_number(value),
        ),
        "generators": _is_base64,
        "sampler": lambda value: isinstance(value, (tuple, list)) and len(value) == 1,
        "streams": lambda value: isinstance(value, (tuple, list)) and all(map(_is_numbered, value)),
        **dict.fromkeys(
            ("before", "ended"),
            lambda value: isinstance(value, (tuple, list)) and all(map(_is_number, value)),
        ),
    }
    wrong = [
        f"{name} is {state[name]!r:.100}" if name in state else f"{name} is missing"
        for name, is_sound in sound.items()
        if name not in state or not is_sound(state[name])
    ]
    if wrong:
        raise ConfigError(
            f"This state is damaged: {'; '.join(wrong)}. Load the one that was saved before it."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _is_numbered(pair: Any) -> bool:
    return isinstance(pair, (tuple, list)) and len(pair) == 2 and _is_number(pair[0])


def _is_base64(value: Any) -> bool:
    try:
        return all(base64.b64decode(text, validate=True) or not value for text in value.split(","))
    except (AttributeError, ValueError):
        return False
