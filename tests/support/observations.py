"""Observations made by hand, of loaders that are ill in one way each."""

from __future__ import annotations

from typing import Any

from headrace_doctor.measure.observed import ACTUAL, DEMAND, SUPPLY, LoaderFacts, Observation, Phase

BATCH = 32


def phase(name: str, wait: float, compute: float, cpu: float, *, steps: int = 40, **fields: Any) -> Phase:
    """Steps of about `wait` and `compute` seconds; `cpu`: processor seconds of a step."""
    factors = [1 + 0.02 * ((step * 7) % 5 - 2) for step in range(steps)]
    made = Phase(
        name,
        waits=[wait * factor for factor in factors],
        computes=[compute * factor for factor in factors],
        samples=[BATCH] * steps,
        cpu_seconds=cpu * steps,
        **fields,
    )
    made.ended = made.began + made.seconds
    made.steps_at = [made.began + i * (wait + compute) for i in range(steps)]
    return made


def look(
    phase: str,
    stages: dict[str, dict[str, list[float]]],
    *,
    role: str = "worker",
    bins: list[list[Any]] | None = None,
    slowest: list[list[Any]] | None = None,
    wanting: float = 1.0,
    delay: float = 0.0,
) -> dict[str, Any]:
    """Makes what a sampler writes."""
    return {
        "pid": 1,
        "role": role,
        "phase": phase,
        "seconds": 4.0,
        "own_cpu_seconds": 0.02,
        "cpu_seconds": 0.0,
        "held_seconds": delay,
        "asleep_seconds": 0.0,
        "late_rounds": 0,
        "cores": [],
        "bound_by": "",
        "rounds": 800,
        "threads_wanting_gil": wanting,
        "stages": stages,
        "lines": {},
        "samples": {"bins": bins or [[0.01, 500]], "slowest": slowest or []},
    }


def observation(
    *phases: Phase, workers: int = 2, looks: list[dict[str, Any]] | None = None, **fields: Any
) -> Observation:
    """Makes an observation of torch's loader of 3,200 samples on four cores."""
    arguments: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers}
    if workers:
        arguments |= {"prefetch_factor": 2, "persistent_workers": fields.pop("persistent", True)}
    loader = LoaderFacts(
        "torch", "DataLoader(Set)", "train.py:9", arguments, fields.pop("batches", 100), 3200, 10**6
    )
    made = Observation(
        ["train.py"], cores=4, threads=1, loader=loader, phases=list(phases), looks=looks or []
    )
    made.ended = "examined"
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def healthy() -> Observation:
    """The step takes 100 ms, the loader could give a batch every 40."""
    return observation(
        phase(ACTUAL, 0.0005, 0.1, 0.1), phase(DEMAND, 0, 0.1, 0.1), phase(SUPPLY, 0.04, 0, 0.08)
    )


def too_few_workers() -> Observation:
    """Two workers give a batch every 100 ms, the step takes 40; six workers give one every 34."""
    return observation(
        phase(ACTUAL, 0.06, 0.04, 0.1),
        phase(DEMAND, 0, 0.04, 0.04),
        phase(SUPPLY, 0.1, 0, 0.06),
        phase("supply num_workers=4", 0.05, 0, 0.06, settings={"loader": {"num_workers": 4}}),
        phase("supply num_workers=6", 0.034, 0, 0.06, settings={"loader": {"num_workers": 6}}),
        looks=[look(SUPPLY, {"fetch": {"read": [300, 200, 2.0, 1.5], "decode": [300, 0, 2.0, 0.0]}})] * 2,
    )


def one_stage(key: str, waiting: float) -> Observation:
    """Workers at one stage for 80 % of their time; more of them bring nothing."""
    seconds = 8.0 / 2  # of two workers, for 40 batches
    stages = {
        "fetch": {
            key: [640, 640 * waiting, 0.8 * seconds, 0.8 * seconds * waiting],
            "decode2": [160, 0, 0.2 * seconds, 0.0],
        }
    }
    return observation(
        phase(ACTUAL, 0.06, 0.04, 0.2),
        phase(DEMAND, 0, 0.02, 0.02),
        phase(SUPPLY, 0.1, 0, 0.2),
        phase("supply num_workers=4", 0.099, 0, 0.2, settings={"loader": {"num_workers": 4}}),
        looks=[look(SUPPLY, stages)] * 2,
    )


def with_line(observation: Observation, key: str, line: str) -> Observation:
    """The same if a stage is always at this line of the user's."""
    for look in observation.looks:
        look["lines"] = {key: {line: 600}}
    return observation


def choosing(workers: int) -> Observation:
    """The training thread sorts for 40 of the 50 ms that a batch takes, and workers wait for it."""
    key = "sampler:ByLength"
    main = {"wait": {key: [320, 0, 1.6, 0.0], "receive": [80, 0, 0.2, 0.0]}}
    looks = [look(phase, main, role="main") for phase in (ACTUAL, SUPPLY)]
    looks.append(look(SUPPLY, {"fetch": {"dataset:__getitem__ (set.py:12)": [100, 0, 0.4, 0.0]}}))
    return with_line(
        observation(
            phase(ACTUAL, 0.04, 0.01, 0.05),
            phase(DEMAND, 0, 0.01, 0.01),
            phase(SUPPLY, 0.04, 0, 0.04),
            phase("supply num_workers=4", 0.04, 0, 0.04, settings={"loader": {"num_workers": 4}}),
            workers=workers,
            looks=looks,
        ),
        key,
        "train.py:20 __iter__: order = sorted(self.lengths)",
    )


def startup() -> Observation:
    """Epochs of ten batches that take a second, half a second of which starts workers."""
    return observation(
        phase(ACTUAL, 0.001, 0.05, 0.06, startups=[0.5, 0.5, 0.5]),
        phase(DEMAND, 0, 0.05, 0.05),
        phase(SUPPLY, 0.02, 0, 0.02),
        batches=10,
        persistent=False,
    )


def oversubscribed() -> Observation:
    """32 threads on four cores: the step takes 100 ms, with four 50."""
    return observation(
        phase(ACTUAL, 0.001, 0.1, 0.3),
        phase(DEMAND, 0, 0.1, 0.3),
        phase("demand threads=4", 0, 0.05, 0.15, settings={"threads": 4}),
        phase(SUPPLY, 0.02, 0, 0.02),
        threads=32,
    )


def straggler() -> Observation:
    """One sample in 200 takes 400 ms, the others 2."""
    bins = [[0.002, 1990], [0.45, 10]]
    slowest = [[0.41, 4000], [0.4, 4200]]
    return observation(
        phase(ACTUAL, 0.06, 0.04, 0.1),
        phase(DEMAND, 0, 0.04, 0.04),
        phase(SUPPLY, 0.09, 0, 0.06),
        phase("supply in_order=False", 0.04, 0, 0.06, settings={"loader": {"in_order": False}}),
        phase("supply num_workers=4", 0.05, 0, 0.06, settings={"loader": {"num_workers": 4}}),
        looks=[look(ACTUAL, {"fetch": {"read": [300, 200, 2.0, 1.5]}}, bins=bins, slowest=slowest)],
    )


def turns_with_the_gil() -> Observation:
    """Loader and step take 50 ms each, and 100 together; with processes 50."""
    return observation(
        phase(ACTUAL, 0.002, 0.098, 0.1),
        phase(DEMAND, 0, 0.05, 0.05),
        phase(SUPPLY, 0.05, 0, 0.05),
        phase("supply num_workers=2", 0.03, 0, 0.05, settings={"loader": {"num_workers": 2}}),
        workers=0,
        looks=[look(ACTUAL, {"step": {"step": [400, 0, 2.0, 0.0]}}, role="main", wanting=1.8)],
    )
