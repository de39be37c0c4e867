"""From observations made by hand to verdicts and advice."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace_doctor.doctor import verdicts
from headrace_doctor.doctor.diagnosis import diagnose
from headrace_doctor.doctor.verdicts import KINDS
from headrace_doctor.errors import DoctorError
from headrace_doctor.measure.observed import (
    ACTUAL,
    BETWEEN,
    DEMAND,
    PARTS,
    SUPPLY,
    DeviceFacts,
    Loop,
    Observation,
)
from support import observations as made

MORE = {"loader": {"num_workers": 4}}


def three(
    actual: tuple[float, float], demand: float, supply: float, *phases: Any, **fields: Any
) -> Observation:
    """Seconds of a batch: (waiting, computing) as it is, and of step and loader alone."""
    return made.observation(
        made.phase(ACTUAL, *actual, 0.1),
        made.phase(DEMAND, 0, demand, demand),
        made.phase(SUPPLY, supply, 0, supply),
        *phases,
        **fields,
    )


def bound_workers(cores: int) -> Observation:
    """Two workers, on so many of four cores; alone the loader takes 100 ms for a batch, the step 40 ms."""
    observation = made.too_few_workers()
    observation.phases = observation.phases[:3]
    for look in observation.looks:
        look |= {"cores": list(range(cores)), "bound_by": "worker_init_fn=pin", "held_seconds": 2.0}
    return observation


def polling_thread(asleep: float, late: int) -> Observation:
    """Another thread polls; the training thread sleeps for so many of 4 s without waiting for anything."""
    stages = {"step": {"step": [800, 0, 4.0, 0.0]}, "other:watch": {"code:watch": [800, 0, 4.0, 0.0]}}
    lines = {"other:watch": {"train.py:43 watch: while not done.is_set(): pass": 700}}
    seen = {"asleep_seconds": asleep, "late_rounds": late, "cpu_seconds": 4.0, "lines": lines}
    looks = [made.look(phase, stages, role="main") | seen for phase in (ACTUAL, DEMAND)]
    return three((0.0005, 0.1), 0.1, 0.04, looks=looks)


def stopped(computing: float, late: int = 500) -> Observation:
    """A process that computes for so many of 4 s, and waits for nothing in the others."""
    look = made.look(ACTUAL, {"step": {"step": [800, 0, 4.0, 0.0]}}, role="main")
    return three((0.0005, 0.1), 0.1, 0.04, looks=[look | {"cpu_seconds": computing, "late_rounds": late}])


def throttled(share: float) -> Observation:
    """A cgroup's quota is used up in so many of its periods; threads wait for cores for 30 % of the time."""
    observation = three((0.0005, 0.1), 0.1, 0.04, looks=[made.look(ACTUAL, {}, role="main", delay=1.2)])
    observation.phases[0].throttled = share
    return observation


def busy(observation: Observation, others: float) -> Observation:
    for phase in observation.phases:
        phase.others = others
    return observation


def parts_of_the_step(close: dict[str, list[float]] | None = None, **shares: float) -> Observation:
    """A step of 100 ms, of which other parts than these are the forward pass."""
    stages = {part: [100.0, 0.0, 4.0 * share, 0.0] for part, share in shares.items() if part != "gc"}
    stages["forward"] = [100.0, 0.0, 4.0 * (1 - sum(shares.values())), 0.0]
    observation = made.healthy()
    observation.looks = [made.look(phase, {"step": stages}, role="main") for phase in (ACTUAL, DEMAND)]
    for look in observation.looks:
        look["gc_seconds"] = 4.0 * shares.get("gc", 0.0)
    if close is not None:
        observation.looks.append(made.look(PARTS, {"step": close}, role="main"))
    return observation


def with_device(**seconds: Any) -> Observation:
    observation = made.healthy()
    observation.device = DeviceFacts(0.05, {"aten::item": 1.0}, **seconds)
    return observation


def receiving(seconds: float, loop: float = 0.0) -> Observation:
    """The loader supplies three times as much; the step waits to read batches out of a pipe."""
    stages = {"wait": {"receive": [100, 0, 40 * seconds, 0.0]}}
    observation = three((0.012, 0.1), 0.1, 0.03, looks=[made.look(SUPPLY, stages, role="main")])
    arguments = {"num_workers": 2, "persistent_workers": True}
    spent = loop * observation.phases[0].seconds
    observation.loops = [Loop("train.py:60", "DataLoader(Val)", arguments, 1, 40, 1280, 0.1 * spent, spent)]
    return observation


def waiting_without_a_reason(delay: float) -> Observation:
    return three((0.04, 0.1), 0.1, 0.05, looks=[made.look(ACTUAL, {}, role="main", delay=delay)])


def validation(arguments: dict[str, Any], supplies: dict[str, float]) -> Observation:
    """A loop that waits 1.5 times as long as training takes, and computes for half of it."""
    observation = made.healthy()
    seconds = observation.phases[0].seconds
    loop = Loop("train.py:60", "DataLoader(Val)", arguments, 4, 40, 1280, 1.5 * seconds, 0.5 * seconds)
    loop.supplies = {workers: [share * seconds / 1280, 0.0] for workers, share in supplies.items()}
    observation.loops = [loop]
    return observation


def threads_in_workers() -> Observation:
    observation = made.too_few_workers()
    alone = made.phase("supply worker_threads=1", 0.04, 0, 0.06, settings={"worker_threads": 1})
    observation.phases[3:] = [alone]
    for look in observation.looks:
        look |= {"cpu_seconds": 4.0, "native_cpu_seconds": 3.0, "native_threads": 7, "libraries": ["cv2"]}
    return observation


def memory(
    first: float, last: float, *, main: float = 1e8, batch: float = 1e6, samples: int = 3200, **phases: float
) -> Observation:
    """Workers that had `first` bytes at first, and in each phase grow to `last`."""
    observation = made.healthy()
    assert observation.loader is not None
    observation.loader.batch_nbytes, observation.loader.samples = int(batch), samples
    observation.memory = {"main_at_first": int(main), "workers_at_first": 10**8, "allowed": 10**11}
    for phase in observation.phases:
        phase.worker_memory = [int(first), int(phases.get(phase.name, last))]
    return observation


def requests(stage: str = "read") -> Observation:
    """Each sample waits 5 ms for a server; eight workers load four times as many."""
    observation = made.one_stage(stage, 0.95)
    eight = {"loader": {"num_workers": 8}}
    observation.phases[3] = made.phase("supply num_workers=8", 0.025, 0, 0.03, settings=eight)
    return made.with_line(observation, stage, "set.py:9 load: data = get(url) → Session.get")


def held_up(waiting: float = 0.03) -> Observation:
    """Two workers that give a batch every 40 ms alone wait for cores for half of their time."""
    four = made.phase("supply num_workers=4", 0.08, 0, 0.08, settings=MORE)
    looks = [made.look(SUPPLY, {}, delay=3.0)] * 2
    return three((waiting, 0.1), 0.1, 0.12, four, looks=looks)


def slower_on_a_busy_machine() -> Observation:
    decoding = made.look(SUPPLY, {"fetch": {"decode": [100, 0, 2.0, 0.0]}}, delay=3.9)
    main = made.look(ACTUAL, {}, role="main", delay=3.9)
    return busy(three((0.1, 0.08), 0.05, 0.1, looks=[decoding, main]), 3.9)


def more_of_a_busy_machine() -> Observation:
    """Two workers compute on two cores; four get more of the cores that other processes use as well."""
    observation = made.one_stage("read", 0.0)
    observation.cores = 2
    observation.phases[3] = made.phase("supply num_workers=4", 0.025, 0, 0.03, settings=MORE)
    return busy(observation, 1.5)


def two_near_causes() -> Observation:
    """Starting workers takes 42 % of an epoch, and more workers would bring nearly as much."""
    observation = made.startup()
    observation.phases[0] = made.phase(ACTUAL, 0.05, 0.05, 0.06, startups=[0.5, 0.5, 0.5])
    observation.phases[2] = made.phase(SUPPLY, 0.1, 0, 0.1)
    observation.phases.append(made.phase("supply num_workers=4", 0.01, 0, 0.02, settings=MORE))
    return observation


def started_again(persistent: bool) -> Observation:
    """The examination saw no epoch begin but the first."""
    observation = made.startup()
    assert observation.loader is not None
    observation.phases[0].startups, observation.loader.first_batch_seconds = [], 0.5
    observation.loader.arguments["persistent_workers"] = persistent
    return observation


def stragglers_in_a_stage() -> Observation:
    """On average the loader is fast enough: batches in order wait for the slow samples."""
    observation = made.straggler()
    observation.phases[:3] = three((0.01, 0.06), 0.06, 0.05).phases
    del observation.phases[4]
    dataset = {"dataset:__getitem__ (set.py:12)": [390, 380, 3.9, 3.8], "collate": [10, 0, 0.1, 0.0]}
    observation.looks += [made.look(SUPPLY, {"fetch": dataset})] * 2
    return busy(observation, 2.5)


def received_late() -> Observation:
    """The training thread waits for a worker that holds the GIL before it can receive what was sent."""
    observation = made.one_stage("collate", 0.0)
    stages = {"fetch": {"collate": [500, 0, 2.5, 0.0]}}
    receiving = {"wait": {"receive": [700, 680, 3.5, 3.4]}}
    observation.looks = [made.look(SUPPLY, stages)] * 2 + [made.look(SUPPLY, receiving, role="main")]
    return observation


def uneven(key: str, *, queue: bool = False) -> Observation:
    """Most of the time in a stage is that of few samples."""
    observation = made.one_stage(key, 1.0)
    observation.looks.append(made.look(ACTUAL, {}, bins=[[0.002, 1000], [0.1, 60]], slowest=[[0.1, 7]]))
    if queue:
        settings = {"loader": {"in_order": False}}
        observation.phases.append(made.phase("supply in_order=False", 0.1, 0, 0.2, settings=settings))
    return observation


def sampler_and_step_in_turn() -> Observation:
    """The training thread chooses samples for 20 of the 50 ms that a batch takes, and steps for 24."""
    observation = made.choosing(1)
    observation.phases[:3] = three((0.026, 0.024), 0.024, 0.025).phases
    for look in observation.looks:
        for row in look["stages"].get("wait", {}).values():
            row[2] = row[0] / 400
    return observation


def uneven_stream() -> Observation:
    """Samples of a stream that are made many at once, and on average as fast as the step."""
    observation = three((0.04, 0.06), 0.06, 0.055)
    slow = made.look(ACTUAL, {}, bins=[[0.0001, 1200], [0.1, 20]], slowest=[[0.1, None]])
    making = {"fetch": {"dataset:shuffled (set.py:3)": [500, 0, 4.0, 0.0]}}
    observation.looks = [slow, *[made.look(SUPPLY, making)] * 2]
    return observation


def of_the_trainer() -> Observation:
    observation = made.too_few_workers()
    assert observation.loader is not None
    observation.loader.trainer = True
    return observation


def checkpoint_in_the_close_look() -> Observation:
    observation = made.healthy()
    close = made.phase(PARTS, 0, 0.1, 0.1, steps=15)
    close.computes[7] += 1.0
    close.ended += 1.0
    observation.phases.append(close)
    step = {"forward": [100.0, 0.0, 1.5, 0.0], "checkpoint": [70.0, 0.0, 1.0, 0.0]}
    observation.looks = [made.look(PARTS, {"step": step}, role="main") | {"seconds": 2.5}]
    return observation


def logging_each_step() -> Observation:
    """Without logging, step and loader need one of two cores each; with it, they would need both twice."""
    observation = made.observation(
        made.phase(ACTUAL, 0.01, 0.09, 0.2),
        made.phase(DEMAND, 0, 0.1, 0.18),
        made.phase(PARTS, 0, 0.1, 0.18, steps=15),
        made.phase(SUPPLY, 0.01, 0, 0.012),
        cores=2,
    )
    step = {"forward": [40.0, 0.0, 1.6, 0.0], "logging": [60.0, 0.0, 2.4, 0.0]}
    observation.looks = [made.look(phase, {"step": step}, role="main") for phase in (ACTUAL, PARTS)]
    return observation


def growing_log(waits: float = 0.01) -> Observation:
    """Steps take 60 ms at first, and 200 ms in the close look, of which 75 % are logging."""
    observation = logging_each_step()
    observation.phases[0].waits = [waits] * 40
    observation.phases[0].computes = [0.06 + 0.002 * step for step in range(40)]
    observation.phases[2].computes = [0.2] * 15
    observation.looks[1]["stages"]["step"] = {
        "forward": [25.0, 0.0, 1.0, 0.0],
        "logging": [75.0, 0.0, 3.0, 0.0],
    }
    return observation


def between_epochs(
    line: str, *, remade: int, seconds: float = 5.0, part: str = "code:f (set.py:3)"
) -> Observation:
    """A step of 100 ms, 100 of them an epoch."""
    observation = made.healthy()
    assert observation.loader is not None
    observation.loader.remade = remade
    observation.phases[0].between = [seconds]
    look = made.look(BETWEEN, {"step": {part: [40, 0, 4.0, 0.0]}}, role="main")
    observation.looks = [look | {"lines": {part: {f"set.py:9 load: {line}": 40}}}]
    return observation


def evaluated_one_by_one(*batched: float) -> Observation:
    """A loop without gradients takes as long as the training, whose step takes 100 ms for 32 samples."""
    observation = made.healthy()
    seconds = observation.phases[0].seconds
    loop = Loop("eval.py:60", "DataLoader(Val)", {"batch_size": 1}, 4, 40, 40, 0.5 * seconds, 0.5 * seconds)
    loop.batched = list(batched)
    observation.loops = [loop]
    return observation


def single_collection() -> Observation:
    observation = parts_of_the_step(gc=0.4)
    for look in observation.looks:
        look["gc_longest"] = look["gc_seconds"]
    return observation


def ended_early(observation: Observation) -> Observation:
    """The script ended before the step was measured alone."""
    observation.ended = "script ended"
    del observation.phases[1]
    return observation


def headraces_stages(decoding: float) -> Observation:
    observation = made.too_few_workers()
    del observation.phases[3:]
    assert observation.loader is not None
    observation.loader.kind = "headrace"
    stages = {"read": [1280, 64.0, 32], "decode": [1280, decoding, 2], "collate": [1280, 0.128, 1]}
    observation.loader.stages = stages
    return observation


# (observation, kind of the verdict, words of its sentence)
TABLE: list[tuple[Observation, str, str]] = [
    (made.healthy(), "healthy", "waits for 0% of its time"),
    (made.too_few_workers(), "workers", "2 workers load 320 samples/s, the training step could process 800"),
    (made.one_stage("read", 0.95), "read", "80% of the time to load a sample"),
    (
        made.one_stage("decode", 0.0),
        "decode",
        "80% of the time to load a sample (5 ms of 6.25 ms) goes to decoding",
    ),
    (made.one_stage("transform:ElasticTransform", 0.0), "transform", "ElasticTransform"),
    (made.one_stage("collate", 0.0), "collate", ""),
    (received_late(), "collate", ""),
    (made.one_stage("dataset:parse (set.py:12)", 0.0), "dataset", "parse (set.py:12)"),
    (made.one_stage("lock", 1.0), "lock", ""),
    (
        requests(),
        "read",
        "each sample waits 4.75 ms for its data, and only 2 are loaded at once: reading at set.py:9",
    ),
    (
        made.choosing(2),
        "sampler",
        "80% of the script's time goes to choosing samples, in ByLength at train.py:20",
    ),
    (made.choosing(0), "sampler", "which sorts: order = sorted(self.lengths)"),
    (sampler_and_step_in_turn(), "sampler", "40% of the script's time"),
    (made.startup(), "startup", "each epoch starts workers for 500 ms, 50% of its time"),
    (started_again(False), "startup", "each epoch starts workers for 500 ms, 50% of its time"),
    (started_again(True), "healthy", ""),
    (made.oversubscribed(), "oversubscribed", "32 threads on 4 cores"),
    (threads_in_workers(), "oversubscribed", "the 2 workers compute on 16 threads, with 4 cores"),
    (made.straggler(), "straggler", "10 of 2,000 samples took over ten times the median of 1.68 ms"),
    (stragglers_in_a_stage(), "straggler", ""),
    (
        uneven_stream(),
        "straggler",
        "20 of 1,220 samples took over ten times the median of 84.1 µs, and 94% of all loading time,"
        " mostly in shuffled (set.py:3)",
    ),
    (uneven("lock"), "lock", ""),
    (uneven("lock", queue=True), "lock", ""),
    (uneven("read"), "read", ""),
    (uneven("read", queue=True), "read", "80% of the time to load a sample"),  # which that queue doesn't save
    (made.turns_with_the_gil(), "gil", "loader and step share one process"),
    (bound_workers(1), "oversubscribed", "the 2 workers may use 1 of 4 cores, bound by worker_init_fn=pin"),
    (bound_workers(2), "read", ""),
    (polling_thread(2.0, 400), "gil", "watch computes for 100% of the time, mostly at train.py:43"),
    (polling_thread(2.0, 10), "healthy", ""),
    (polling_thread(0.0, 400), "healthy", ""),
    (stopped(2.0), "unexplained", "stands still for 50% of its time"),
    (stopped(2.0, late=10), "healthy", ""),
    (stopped(3.9), "healthy", ""),
    (throttled(0.9), "cores", "the limit of processor time (cgroup) was used up in 90% of its periods"),
    (throttled(0.1), "healthy", ""),
    (with_device(synchronise_seconds=0.04), "synchronise", "waits for 40 ms of a step's 100 ms"),
    (with_device(blocking_copy_seconds=0.04), "copy", "waits for 40 ms of a step's 100 ms"),
    (waiting_without_a_reason(0.0), "unexplained", "waits for 29% of its time"),
    (waiting_without_a_reason(2.0), "cores", "waits for 29% of its time"),
    (receiving(0.01), "healthy", "to receive batches"),
    (receiving(0.01, loop=2.0), "healthy", "to receive batches"),
    (receiving(0.001), "unexplained", ""),
    (three((0.08, 0.02), 0.097, 0.08), "healthy", "its throughput is 320 samples/s, 330 with data"),
    (three((0.001, 0.14), 0.1, 0.04), "healthy", "1.4 times as long as on the repeated batches"),
    (three((0.15, 0.05), 0.04, 0.06, threads=4), "cores", "3.3 times as long"),
    (parts_of_the_step(compile=0.4), "recompile", "40% of the script's time"),
    (parts_of_the_step(checkpoint=0.4), "checkpoint", "40% of the script's time"),
    (parts_of_the_step(logging=0.4), "logging", "40% of the script's time"),
    (parts_of_the_step(gc=0.4), "gc", "40% of the script's time"),
    (single_collection(), "healthy", ""),
    (parts_of_the_step(backward=0.4, optimizer=0.3), "healthy", ""),
    (parts_of_the_step(optimizer=0.7), "healthy", "spends 70% on the optimizer"),
    (parts_of_the_step({"optimizer": [1, 0, 8.0, 0.0]}, optimizer=0.6), "healthy", "100% on the optimizer"),
    (checkpoint_in_the_close_look(), "healthy", "320 with data at no cost"),
    (logging_each_step(), "logging", ""),
    (growing_log(), "logging", "and more and more: a step took 69 ms at first, 200 ms later"),
    (growing_log(waits=0.06), "logging", "and more and more"),  # loading took longer, too, alone it doesn't
    (
        between_epochs("x = np.load(path)", remade=1),
        "startup",
        "33% of the script's time passes between epochs, while the dataset and its loader are made again,"
        " mostly in load at set.py:9, which loads a whole file: x = np.load(path)",
    ),
    (between_epochs("rows = json.load(file)", remade=0), "startup", "mostly in load at set.py:9"),
    (between_epochs("score = model(x)", remade=0), "healthy", ""),
    (between_epochs("score = model(x)", remade=1, part="forward"), "healthy", ""),
    (between_epochs("json.dump(rows, file)", remade=1, part="logging"), "logging", ""),
    (between_epochs("x = np.load(path)", remade=1, seconds=0.5), "healthy", ""),
    (
        evaluated_one_by_one(32, 0.001, 0.001, 0.0),
        "validation",
        "50% of the script's time with batch_size=1: 100 ms for each sample, in training 3.14 ms",
    ),
    (evaluated_one_by_one(), "healthy", ""),
    (evaluated_one_by_one(32, 0.001, 0.001, 1.0), "healthy", ""),  # it starts workers each time
    (
        validation({"num_workers": 0}, {"0": 1.5, "4": 0.5}),
        "validation",
        "waits for its loader for 75% of that",
    ),
    (validation({"num_workers": 2, "persistent_workers": False}, {"2": 0.1}), "validation", ""),
    (validation({"num_workers": 2, "persistent_workers": True}, {"2": 0.1}), "healthy", ""),
    (memory(1e8, 1.6e8, samples=10_000), "memory", "46.9 MB for every 1,000 samples: 469 MB in an epoch"),
    (memory(1e8, 1.6e8, samples=2_000), "healthy", ""),  # too little in an epoch to matter
    (memory(1e8, 1e8, actual=1.6e8, samples=10_000), "healthy", ""),
    (memory(1e8, 1.08e8, actual=1.17e8, samples=10**6), "healthy", ""),  # as much as an allocator keeps
    (memory(1e9, 1e9, main=5e8), "memory", "each since their first batch: 896 MB in all"),
    (memory(1e9, 1e9, main=4e9), "healthy", ""),  # a small part of what they were forked with
    (memory(9e8, 9.34e8), "memory", "each since their first batch: 830 MB in all"),
    (memory(1e8, 9e8), "memory", ""),
    (memory(1e8, 9e8, batch=1e8), "healthy", ""),  # it swings by batches
    (held_up(), "workers", ""),
    (busy(held_up(), 3.0), "healthy", "waits for 23% of its time (other processes hold it up)"),
    (busy(held_up(0.06), 3.0), "undecided", "the loader or the step: other processes used 3.0 of 4 cores"),
    (busy(made.too_few_workers(), 2.0), "workers", ""),
    (slower_on_a_busy_machine(), "undecided", "the loader or the step: other processes used 3.9 of 4 cores"),
    (busy(made.one_stage("decode", 0.0), 3.9), "decode", ""),  # the only one
    (more_of_a_busy_machine(), "read", ""),
    (ended_early(made.healthy()), "undecided", "ended after 40 steps"),
    (ended_early(made.too_few_workers()), "workers", ""),
    (headraces_stages(2.56), "read", ""),
    (headraces_stages(10.24), "decode", ""),
]


@pytest.mark.parametrize("stage", ["dataset:load (set.py:9)", "transform:Load"])
def test_advice_for_later_names_the_stage(stage: str) -> None:
    later = diagnose(requests(stage)).advice[0].diff[-1]
    assert "still waits" in later
    assert "{" not in later


@pytest.mark.parametrize(("observation", "kind", "words"), TABLE)
def test_an_observation_has_its_verdict(observation: Observation, kind: str, words: str) -> None:
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == kind
    assert words in diagnosis.verdict.sentence
    assert {cause.kind for cause in diagnosis.causes} <= set(KINDS)
    assert diagnosis.advice or kind in ("healthy", "undecided", "unexplained", "cores")
    for one in diagnosis.advice:
        assert one.expected <= 1.001 * one.predicted or not one.predicted
    json.dumps(diagnosis.to_json(), allow_nan=False)


def test_two_causes_are_told_apart_by_a_margin_or_undecided_on_a_busy_machine() -> None:
    verdict = diagnose(two_near_causes()).verdict
    assert verdict.kind in ("startup", "workers")
    assert verdict.margin < 0.15
    undecided, *others = diagnose(busy(two_near_causes(), 3.9)).causes
    assert undecided.kind == "undecided"
    assert {cause.kind for cause in others} == {"startup", "workers"}
    assert all(KINDS[cause.kind].title in undecided.sentence for cause in others)


ADVICE: list[tuple[Observation, str, dict[str, Any], float]] = [
    # (observation, summary of its first advice, settings, at most so many times as fast)
    (made.too_few_workers(), "num_workers=2 → 6", {"loader": {"num_workers": 6}}, 2.5),
    (requests(), "num_workers=2 → 8", {"loader": {"num_workers": 8}}, 5.0),
    (made.choosing(2), "sort once", {}, 5.0),
    (uneven_stream(), "if many samples are prepared at once", {}, 1.67),
    (made.one_stage("collate", 0.0), "collate_fn: torch.stack of tensors of one shape", {}, 5.0),
    (with_device(blocking_copy_seconds=0.04), "pin_memory=True and", {"loader": {"pin_memory": True}}, 1.66),
    (parts_of_the_step(logging=0.4), "log less often", {}, 1.67),
    (growing_log(), "append what is new", {}, 4.1),
    (between_epochs("x = np.load(path)", remade=1), "make the dataset and its loader once", {}, 1.5),
    (
        evaluated_one_by_one(32, 0.001, 0.001, 0.0),
        "eval.py:60: batch_size=1 → 32",
        {"loader": {"batch_size": 32}},
        2.0,
    ),
    (three((0.15, 0.05), 0.04, 0.06, threads=4), "torch.set_num_threads(4) → 2", {"threads": 2}, 0.0),
    (made.startup(), "persistent_workers=False → True", {"loader": {"persistent_workers": True}}, 2.0),
    (threads_in_workers(), "one thread for the libraries in each worker", {"worker_threads": 1}, 2.5),
    (
        validation({"num_workers": 0}, {"0": 1.5, "4": 0.5}),
        "train.py:60: num_workers=0 → 4, persistent_workers=True",
        {"loader": {"num_workers": 4, "persistent_workers": True}},
        3.0,
    ),
    (ended_early(made.too_few_workers()), "num_workers=2 → 6", {"loader": {"num_workers": 6}}, 0.0),
    (memory(1e8, 1.6e8, samples=10_000), "records in arrays", {}, 1.0),
]


@pytest.mark.parametrize(("observation", "summary", "settings", "most"), ADVICE)
def test_advice_has_a_bound_and_what_can_be_tried(
    observation: Observation, summary: str, settings: dict[str, Any], most: float
) -> None:
    first = diagnose(observation).advice[0]
    assert first.summary.startswith(summary)
    assert first.settings == settings
    assert first.predicted == pytest.approx(most, rel=0.06)


LINES = [
    # (stage, share of it that waits, line of the user's, words of the first advice, lines of its patch)
    ("read", 0.0, "with zipfile.ZipFile(self.path) as z:", "open the archive once per worker", 4),
    ("read", 0.0, "f = tarfile.open(paths[index])", "open the archive once per worker", 0),
    ("read", 0.0, "self.file = opener(path) → ZipFile.__init__", "open the archive once per worker", 0),
    ("read", 0.0, 'noise = np.load(os.path.join(self.root, "noise.npy"))', "load it once per worker", 4),
    ("read", 0.0, "x = np.load(self.paths[index])", "map the file instead of loading it", 0),
    ("read", 0.0, "row = pd.read_csv(self.path, skiprows=index).iloc[0]", "load it once per worker", 0),
    ("read", 0.0, "words = json.load(open(VOCABULARY)) → load", "load it once per worker", 4),
    ("read", 0.0, "x = fetch(index)", "open and load once per worker: it computes", 0),
    ("read", 0.95, "x = fetch(index)", "copy the data to a local disk", 0),
    (
        "dataset:f (set.py:3)",
        0.0,
        "out = subprocess.run(['sox', path])",
        "call a library instead of a program",
        0,
    ),
    ("dataset:f (set.py:3)", 0.0, "rows = json.loads(text)", "parse the records once", 0),
    ("dataset:f (set.py:3)", 0.0, "for token in tokens:", "replace the loop by one operation", 0),
    ("dataset:f (set.py:3)", 0.0, "buffer = np.zeros((9000, 9000))", "allocate the buffer once", 0),
    ("dataset:f (set.py:3)", 0.0, "return model(x)", "compute f (set.py:3) before the training", 0),
    ("transform:Paste", 0.0, "images = pickle.load(stream)", "load it once per worker", 0),
    ("dataset:TensorDataset", 0.0, "", "pick whole batches", 0),
    ("transform:Shrink", 0.0, "image = image.resize((64, 64))", "store the images in the size", 0),
]


@pytest.mark.parametrize(("stage", "waiting", "line", "advice", "patch"), LINES)
def test_advice_follows_from_what_the_line_does(
    stage: str, waiting: float, line: str, advice: str, patch: int
) -> None:
    observation = made.one_stage(stage, waiting)
    if line:
        made.with_line(observation, stage, f"set.py:9 load: {line}")
    diagnosis = diagnose(observation)
    assert advice in diagnosis.advice[0].summary
    assert len(diagnosis.advice[0].diff) == patch
    assert not line or "at set.py:9" in diagnosis.verdict.sentence


def test_workers_are_advised_as_a_diff_and_the_least_number_that_suffices() -> None:
    observation = made.too_few_workers()
    eight = {"loader": {"num_workers": 8}}
    observation.phases.append(made.phase("supply num_workers=8", 0.033, 0, 0.06, settings=eight))
    diff = ("-loader = DataLoader(…, num_workers=2)", "+loader = DataLoader(…, num_workers=6)")
    assert diagnose(observation).advice[0].diff == diff


@pytest.mark.parametrize(
    ("start", "persistent", "change"),
    [
        (0.02, False, "num_workers=2 → 6"),
        (1.0, False, "num_workers=2 → 6, persistent_workers=False → True"),
        (1.0, True, "num_workers=2 → 6"),
    ],
)
def test_more_workers_stay_if_their_start_takes_long(start: float, persistent: bool, change: str) -> None:
    observation = made.too_few_workers()
    assert observation.loader is not None
    observation.loader.batches = 40
    observation.loader.arguments["persistent_workers"] = persistent
    for phase in observation.phases:
        if phase.settings:
            phase.startups = [start]
    first = diagnose(observation).advice[0]
    assert first.summary == change
    assert 2.0 < first.expected < 2.6


@pytest.mark.parametrize(("slowest", "line"), [(0.1, ()), (0.9, (9,)), (60.0, ())])
def test_a_longer_queue_for_a_stream_is_advised_if_it_can_help(slowest: float, line: tuple[int, ...]) -> None:
    observation = uneven_stream()
    observation.looks[0]["samples"]["slowest"] = [[slowest, None]]
    queue = tuple(f" or have more batches ready meanwhile: prefetch_factor={count}" for count in line)
    assert diagnose(observation).advice[0].diff == queue


def test_what_a_dataset_receives_from_processes_of_its_own_is_sent_in_smaller_parts() -> None:
    observation = made.one_stage("receive", 0.0)
    made.with_line(observation, "receive", "set.py:9 load: for clip in iter(self.queue.get, None):")
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "transfer"
    assert diagnosis.advice[0].summary.startswith("send less")


def test_workers_of_the_trainer_are_advised_as_its_arguments() -> None:
    observation = of_the_trainer()
    ours = made.phase("supply headrace", 0.01, 0, 0.02, settings={"headrace": True})
    observation.phases.append(ours)
    first, second = diagnose(observation).advice[:2]
    assert first.summary == "dataloader_num_workers=2 → 6"
    assert first.diff == (
        "-arguments = TrainingArguments(…, dataloader_num_workers=2)",
        "+arguments = TrainingArguments(…, dataloader_num_workers=6)",
    )
    assert "without num_workers, from get_train_dataloader()" in second.diff[0]
    # Under `headrace run`, a Trainer's loader keeps its num_workers=0.
    assert "headrace run" not in "".join(second.diff)


def test_a_loop_without_gradients_takes_the_forward_pass_of_a_step() -> None:
    observation = evaluated_one_by_one(32, 0.001, 0.001, 0.0)
    observation.loops[0].samples = 640  # half as many as in the training
    parts = {"forward": [30, 0, 1.2, 0.0], "backward": [60, 0, 2.4, 0.0], "optimizer": [10, 0, 0.4, 0.0]}
    whole = diagnose(observation).advice[0].expected
    observation.looks.append(made.look(PARTS, {"step": parts}, role="main"))
    assert (whole, diagnose(observation).advice[0].expected) == pytest.approx((2 / 1.5, 2 / 1.15), rel=0.02)


def test_the_cores_bound_what_workers_bring() -> None:
    # Twice as many workers would give a batch every 20 ms, but all four cores are busy for 90 ms of it.
    observation = three(
        (0.06, 0.04), 0.04, 0.1, made.phase("supply num_workers=4", 0.02, 0, 0.3, settings=MORE)
    )
    observation.phases[1].cpu_seconds, observation.phases[2].cpu_seconds = 0.06 * 40, 0.3 * 40
    verdict = diagnose(observation).verdict
    assert (verdict.kind, verdict.cost) == ("workers", pytest.approx(0.1, abs=0.03))


@pytest.mark.parametrize(
    ("observation", "seconds", "first"),
    [
        (made.too_few_workers(), 0.01, "num_workers=2 → 6"),
        (made.one_stage("decode", 0.0), 0.001, "torch.utils"),
    ],
)
def test_headrace_comes_first_if_nothing_else_comes_near(
    observation: Observation, seconds: float, first: str
) -> None:
    ours = made.phase("supply headrace", seconds, 0, 2 * seconds, settings={"headrace": True})
    observation.phases.append(ours)
    diagnosis = diagnose(observation)
    assert diagnosis.advice[0].summary.startswith(first)
    assert diagnosis.advice[0].cause == diagnosis.verdict.kind
    assert {"headrace": True} in [one.settings for one in diagnosis.advice]


@pytest.mark.parametrize(
    ("change", "most"),
    [
        (lambda o: None, (5.0, 5.3)),
        # The stage holds 80 % of loading; a fix may speed up the rest as well, as smaller images do.
        (lambda o: o.phases.__setitem__(1, made.phase(DEMAND, 0, 0.01, 0.01)), (10, 10.5)),
        (lambda o: setattr(o.phases[1], "computes", [0.01, 0.03] * 20), (5 * 1.1, 5 * 1.3)),
        # The step needs no more than its fastest round of batches, nor the time that it waited for a core.
        (lambda o: setattr(o.phases[1], "computes", [0.02] * 20 + [0.012] * 20), (8.3, 20)),
        (lambda o: o.looks.append(made.look(DEMAND, {}, role="main", delay=2.0)), (10, 11)),
    ],
)
def test_what_is_not_known_of_the_step_widens_the_bound(
    change: Callable[[Observation], None], most: tuple[float, float]
) -> None:
    observation = made.one_stage("decode", 0.0)
    change(observation)
    low, high = most
    assert low <= diagnose(observation).advice[0].predicted < high


def test_a_bound_that_says_nothing_is_not_told() -> None:
    observation = made.one_stage("decode", 0.0)
    observation.looks.append(made.look(DEMAND, {}, role="main", delay=1000.0))
    diagnosis = diagnose(observation)
    assert diagnosis.advice[0].predicted == 0
    assert "at most" not in str(diagnosis)


def test_rates_come_in_order_with_their_range() -> None:
    rates = diagnose(made.too_few_workers()).rates
    assert [rate.name for rate in rates[:3]] == ["supply", "demand", "actual"]
    assert all(rate.low < rate.samples_per_second < rate.high for rate in rates)
    assert rates[0].samples_per_second == pytest.approx(320, rel=0.01)
    assert PARTS not in {rate.name for rate in diagnose(checkpoint_in_the_close_look()).rates}


def test_where_the_time_goes_adds_up() -> None:
    observation = validation({"num_workers": 0}, {})
    step = {"forward": [50.0, 0.0, 1.0, 0.0], "backward": [50.0, 0.0, 1.0, 0.0]}
    waiting = {"wait": [100.0, 100.0, 2.0, 2.0]}
    observation.looks = [made.look(ACTUAL, {"step": step, "wait": waiting}, role="main")]
    observation.phases[0].ended += 2 * observation.phases[0].seconds
    shares = {part.name: part.share for part in diagnose(observation).time}
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.02)
    assert shares["loop at train.py:60: waiting for data"] == pytest.approx(0.5)


def test_the_parts_of_a_step_are_those_of_the_close_look() -> None:
    callback = "code:count_confusions (train.py:30)"
    close = {callback: [150, 0, 1.2, 0.0], "backward": [50, 0, 0.3, 0.0], "checkpoint": [9, 0, 0.1, 0.0]}
    diagnosis = diagnose(parts_of_the_step(close, checkpoint=0.05, optimizer=0.6))
    shares = {part.name: part.share for part in diagnosis.time}
    # What not each batch needs is as in the actual phase, the rest divides as in the close look.
    assert shares["count_confusions (train.py:30)"] == pytest.approx(0.76)
    assert shares["the backward pass"] == pytest.approx(0.19)
    assert shares["writing checkpoints"] == pytest.approx(0.05)
    assert "spends 76% on count_confusions (train.py:30)" in diagnosis.verdict.sentence


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        (
            {"train.py:9 draw: figure.save(path) → Figure.save": 60},
            "at train.py:9: figure.save(path)",
        ),
        ({"train.py:8 draw: figure = plot()": 40, "train.py:9 draw: figure.close()": 30}, "in draw"),
        ({"train.py:8 draw: figure = plot()": 30, "train.py:3 main: draw()": 30}, ""),
    ],
)
def test_the_line_that_writes_most_logs_is_named(lines: dict[str, int], where: str) -> None:
    observation = parts_of_the_step(logging=0.4)
    for look in observation.looks:
        look["lines"] = {"logging": lines}
    named = diagnose(observation).verdict.sentence.partition("time")[2]
    assert named == (f", mostly {where}" if where else "")


def test_stages_of_headraces_loader_count_with_the_threads_that_they_have() -> None:
    stages = diagnose(headraces_stages(2.56)).stages
    rates = {stage.name: stage.samples_per_second for stage in stages}
    assert rates == pytest.approx({"read": 640, "decode": 1000, "collate": 10_000})
    assert len({stage.place for stage in stages}) == 3


def test_what_calls_transforms_is_no_stage_of_its_own() -> None:
    calling = {"transform:": [10, 0, 0.1, 0.0]}
    transforms = {"transform:Crop": [30, 0, 0.3, 0.0], "transform:Flip": [60, 0, 0.6, 0.0]}
    observation = made.too_few_workers()
    observation.looks = [made.look(SUPPLY, {"fetch": calling | transforms})]
    seconds = {one.name: one.seconds_per_sample * 1280 for one in diagnose(observation).stages}
    assert seconds == pytest.approx({"Crop": 1 / 3, "Flip": 2 / 3})
    observation.looks = [made.look(SUPPLY, {"fetch": calling})]
    assert [one.name for one in diagnose(observation).stages] == ["transform"]


def test_notes_tell_of_a_late_first_batch_and_of_other_processes() -> None:
    observation = made.healthy()
    assert diagnose(observation).notes == ()
    assert observation.loader is not None
    observation.loader.first_batch_seconds = 5.0
    late, others = diagnose(busy(observation, 2.0)).notes
    assert late.startswith("the first batch came after 5 s, as long as 50 steps take")
    assert others.startswith("other processes used 2.0 of 4 cores")
    assert "on a free one, the script would reach about 320 samples/s" in others


def test_batches_ahead_that_shared_memory_cannot_hold_are_found() -> None:
    observation = made.healthy()
    observation.memory = {"allowed": 10**10, "shm_total": 4 * 10**6, "shm_free": 0}
    diagnosis = diagnose(observation)
    (finding,) = (one for one in diagnosis.memory if one.name == "batches made ahead")
    assert finding.judgement == "bad"
    assert "docker run --shm-size" in finding.remedy
    (advice,) = diagnosis.advice
    assert (advice.cause, advice.summary, advice.predicted) == ("memory", "prefetch_factor=2 → 1", 1.0)
    assert advice.diff[1] == "+loader = DataLoader(…, prefetch_factor=1)"


def test_a_device_out_of_memory_is_the_finding() -> None:
    observation = made.healthy()
    observation.ended = "out of memory on the device: tried to allocate 2 GiB"
    (finding,) = (one for one in diagnose(observation).memory if one.name == "memory of the device")
    assert finding.judgement == "bad"
    assert "gradient accumulation" in finding.remedy


FEW = made.healthy()
FEW.ended, FEW.phases[0] = "script ended", made.phase(ACTUAL, 0.0005, 0.1, 0.1, steps=5)


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (Observation(["train.py"], 4, 1), "made no step with a DataLoader"),
        (
            Observation(["train.py"], 4, 1, ended="ValueError: no data"),
            "enough was measured: ValueError: no data",
        ),
        (made.observation(ended="out of memory on the device: 2 GiB more"), "2 GiB more.*autocast"),
        (FEW, "at least 8 after the first ones"),
        (made.observation(made.phase(ACTUAL, 0.1, 0.1, 0.1)), "Too few steps"),
        # As if a loop over another loader, in another thread, lasted throughout the few steps of a script.
        (
            made.observation(made.phase(ACTUAL, 0.1, 0.0, 0.1), made.phase(SUPPLY, 0.1, 0, 0.1)),
            "Too few steps",
        ),
    ],
)
def test_too_little_is_an_error_that_says_why(observation: Observation, message: str) -> None:
    with pytest.raises(DoctorError, match=message):
        diagnose(observation)


def test_the_verdict_of_the_documentation_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[4] / "docs" / "adding-a-verdict.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(code, names)
    monkeypatch.setattr(verdicts, "VERDICTS", (*verdicts.VERDICTS, names["VERDICT"]))
    monkeypatch.setitem(KINDS, "pinned", names["VERDICT"])
    looks = [made.look(SUPPLY, {"pin": {"pin": [100, 0, 2.0, 0.0]}}, role="main")]
    observation = three((0.06, 0.04), 0.04, 0.1, looks=looks)
    assert observation.loader is not None
    observation.loader.arguments["pin_memory"] = True
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "pinned"
    assert "pins each sample for 1.56 ms" in diagnosis.verdict.sentence
    assert diagnosis.advice[0].settings == {"loader": {"pin_memory": False}}
    assert "Pinning without a device" in str(diagnosis)
    assert "Pinning without a device" in diagnosis.to_html()
