"""From observations made by hand to causes and advice."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from headrace_doctor.doctor.diagnosis import diagnose
from headrace_doctor.doctor.records import KINDS
from headrace_doctor.doctor.wording import gain
from headrace_doctor.errors import DoctorError
from headrace_doctor.measure.observed import ACTUAL, DEMAND, PARTS, SUPPLY, DeviceFacts, Loop, Observation
from support import observations as made

CASES: dict[str, Callable[[], Observation]] = {
    "healthy": made.healthy,
    "workers": made.too_few_workers,
    "read": lambda: made.one_stage("read", 0.95),
    "decode": lambda: made.one_stage("decode", 0.0),
    "transform": lambda: made.one_stage("transform:ElasticTransform", 0.0),
    "collate": lambda: made.one_stage("collate", 0.0),
    "dataset": lambda: made.one_stage("dataset:parse (set.py:12)", 0.0),
    "startup": made.startup,
    "oversubscribed": made.oversubscribed,
    "straggler": made.straggler,
    "gil": made.turns_with_the_gil,
}


@pytest.mark.parametrize("kind", CASES)
def test_the_illness_is_named_first(kind: str) -> None:
    diagnosis = diagnose(CASES[kind]())
    assert diagnosis.verdict.kind == kind
    assert diagnosis.verdict.confidence > 0.9
    assert all(cause.kind in KINDS for cause in diagnosis.causes)
    json.dumps(diagnosis.to_json())


def test_the_healthy_one_gets_no_advice() -> None:
    diagnosis = diagnose(made.healthy())
    assert diagnosis.advice == ()
    assert diagnosis.stall < 0.01
    assert "waits for 0% of its time" in diagnosis.verdict.sentence


def test_workers_are_advised_as_a_diff_with_a_prediction() -> None:
    advice = diagnose(made.too_few_workers()).advice[0]
    assert advice.summary == "num_workers=2 → 6"
    assert advice.settings == {"loader": {"num_workers": 6}}
    # From 100 ms of a step to 40, which the step itself takes.
    assert advice.predicted == pytest.approx(2.5, rel=0.05)
    assert advice.diff == ("-loader = DataLoader(…, num_workers=2)", "+loader = DataLoader(…, num_workers=6)")


def test_the_least_number_of_workers_that_suffices_is_advised() -> None:
    observation = made.too_few_workers()
    more = made.phase("supply num_workers=8", 0.033, 0, 0.06, settings={"loader": {"num_workers": 8}})
    observation.phases.append(more)
    assert diagnose(observation).advice[0].summary == "num_workers=2 → 6"


def test_a_stage_promises_no_more_than_the_rest_allows() -> None:
    advice = diagnose(made.one_stage("collate", 0.0)).advice[0]
    assert advice.ideal
    assert advice.settings == {}
    # 80 % of the loader's 100 ms go; what is left is as much as the step takes.
    assert advice.alone == pytest.approx(5.0, rel=0.05)
    assert advice.predicted == pytest.approx(5.0, rel=0.05)


def test_the_cores_bound_what_workers_bring() -> None:
    # Twice as many workers would give a batch every 20 ms, but all four cores are busy for 90 ms of it.
    observation = made.observation(
        made.phase(ACTUAL, 0.06, 0.04, 0.36),
        made.phase(DEMAND, 0, 0.04, 0.06),
        made.phase(SUPPLY, 0.1, 0, 0.3),
        made.phase("supply num_workers=4", 0.02, 0, 0.3, settings={"loader": {"num_workers": 4}}),
    )
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "workers"
    assert diagnosis.verdict.cost == pytest.approx(0.1, abs=0.03)


def test_headrace_comes_after_torchs_own_remedies_where_these_suffice() -> None:
    observation = made.too_few_workers()
    observation.phases.append(made.phase("supply headrace", 0.01, 0, 0.02, settings={"headrace": True}))
    summaries = [advice.summary for advice in diagnose(observation).advice]
    assert summaries[0] == "num_workers=2 → 6"
    assert "torch.utils.data.DataLoader → headrace.DataLoader" in summaries[1:]


def test_headrace_comes_first_where_nothing_else_comes_near() -> None:
    observation = made.one_stage("decode", 0.0)
    observation.phases.append(made.phase("supply headrace", 0.001, 0, 0.001, settings={"headrace": True}))
    advice = diagnose(observation).advice
    assert advice[0].settings == {"headrace": True}
    assert advice[0].cause == "decode"


@pytest.mark.parametrize(("field", "kind"), [("synchronise", "synchronise"), ("blocking_copy", "copy")])
def test_waits_for_the_device_are_found(field: str, kind: str) -> None:
    device = DeviceFacts("GPU", busy_seconds=0.05, **{f"{field}_seconds": 0.04})  # type: ignore[arg-type]
    device.synchronisations = {"aten::item": 1.0}
    observation = made.healthy()
    observation.device = device
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == kind
    assert 100.5 / 60.5 <= diagnosis.advice[0].predicted < 1.1 * 100.5 / 60.5


def test_rates_come_in_order_with_their_range() -> None:
    rates = diagnose(made.too_few_workers()).rates
    assert [rate.name for rate in rates[:3]] == ["supply", "demand", "actual"]
    for rate in rates:
        assert rate.low <= rate.samples_per_second <= rate.high
    assert rates[0].samples_per_second == pytest.approx(320, rel=0.01)


def test_a_noisy_measurement_is_less_sure() -> None:
    def with_waits(spread: float) -> float:
        observation = made.too_few_workers()
        for one in observation.phases:
            if one.name.startswith("supply"):
                one.waits = [wait * (spread if i % 8 == 0 else 1.0) for i, wait in enumerate(one.waits)]
        return diagnose(observation).verdict.confidence

    assert with_waits(1.0) > 0.95
    assert with_waits(40.0) < with_waits(1.0)


def waiting_without_a_reason(delay: float) -> Observation:
    return made.observation(
        made.phase(ACTUAL, 0.04, 0.1, 0.1),
        made.phase(DEMAND, 0, 0.1, 0.1),
        made.phase(SUPPLY, 0.05, 0, 0.05),
        looks=[made.look(ACTUAL, {}, role="main", delay=delay)],
    )


@pytest.mark.parametrize(("delay", "kind"), [(0.0, "unexplained"), (2.0, "cores")])
def test_a_step_that_waits_is_never_called_healthy(delay: float, kind: str) -> None:
    diagnosis = diagnose(waiting_without_a_reason(delay))
    assert diagnosis.verdict.kind == kind
    assert "waits for 29% of its time" in diagnosis.verdict.sentence


@pytest.mark.parametrize(("receiving", "kind"), [(0.01, "healthy"), (0.001, "unexplained")])
def test_a_step_that_only_receives_batches_does_not_wait_for_data(receiving: float, kind: str) -> None:
    """The loader supplies three times as much; what the step waits for is to read batches out of a pipe."""
    stages = {"wait": {"receive": [100, 0, 40 * receiving, 0.0]}}
    diagnosis = diagnose(
        made.observation(
            made.phase(ACTUAL, 0.012, 0.1, 0.1),
            made.phase(DEMAND, 0, 0.1, 0.1),
            made.phase(SUPPLY, 0.03, 0, 0.03),
            looks=[made.look(SUPPLY, stages, role="main")],
        )
    )
    assert diagnosis.verdict.kind == kind
    assert ("to receive batches" in diagnosis.verdict.sentence) == (kind == "healthy")


def test_receiving_is_a_share_of_the_steps_without_other_loops() -> None:
    """The wait is one of steps; a validation loop, however long, makes what they receive no smaller."""
    stages = {"wait": {"receive": [100, 0, 40 * 0.01, 0.0]}}
    observation = made.observation(
        made.phase(ACTUAL, 0.012, 0.1, 0.1),
        made.phase(DEMAND, 0, 0.1, 0.1),
        made.phase(SUPPLY, 0.03, 0, 0.03),
        looks=[made.look(SUPPLY, stages, role="main")],
    )
    seconds = observation.phases[0].seconds
    arguments = {"num_workers": 2, "persistent_workers": True}
    observation.loops = [
        Loop("train.py:60", "DataLoader(Val)", arguments, 1, 40, 1280, 0.1 * seconds, 2 * seconds)
    ]
    verdict = diagnose(observation).verdict
    assert verdict.kind == "healthy"
    assert "to receive batches" in verdict.sentence


def test_a_step_that_is_as_slow_alone_is_healthy_however_long_it_waits() -> None:
    observation = made.observation(
        made.phase(ACTUAL, 0.08, 0.02, 0.1),
        made.phase(DEMAND, 0, 0.097, 0.1),
        made.phase(SUPPLY, 0.08, 0, 0.08),
    )
    verdict = diagnose(observation).verdict
    assert verdict.kind == "healthy"
    assert "waits for 80% of its time; its throughput is 320 samples/s, 330 with data" in verdict.sentence


def test_a_step_that_takes_longer_than_alone_without_waiting_is_healthy() -> None:
    """As on samples of uneven length, of which the few batches that are repeated may be the shorter ones."""
    observation = made.observation(
        made.phase(ACTUAL, 0.001, 0.14, 0.14),
        made.phase(DEMAND, 0, 0.1, 0.1),
        made.phase(SUPPLY, 0.04, 0, 0.08),
    )
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "healthy"
    assert "1.4 times as long as on the repeated batches" in diagnosis.verdict.sentence
    assert "times as long" not in diagnose(made.healthy()).verdict.sentence


def test_threads_beside_worker_processes_are_not_taken_for_a_loader() -> None:
    observation = made.too_few_workers()
    observation.phases[0] = made.phase(ACTUAL, 0.08, 0.04, 0.1)
    observation.looks.append(made.look(ACTUAL, {}, role="main", wanting=2.0))  # such as one that pins
    assert diagnose(observation).verdict.kind == "workers"


def test_a_loader_that_is_much_slower_beside_the_step_competes_for_cores() -> None:
    observation = made.observation(
        made.phase(ACTUAL, 0.15, 0.05, 0.1),
        made.phase(DEMAND, 0, 0.04, 0.04),
        made.phase(SUPPLY, 0.06, 0, 0.06),
        threads=4,
    )
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "cores"
    assert diagnosis.advice[0].settings == {"threads": 2}
    assert "3.3 times as long" in diagnosis.verdict.sentence


def test_a_first_batch_that_takes_long_is_noted() -> None:
    observation = made.healthy()
    assert diagnose(observation).notes == ()
    assert observation.loader is not None
    observation.loader.first_batch_seconds = 5.0
    (note,) = diagnose(observation).notes
    assert note.startswith("the first batch came after 5.0 s, as long as 50 steps take")


def test_memory_that_ends_before_anything_is_measured_is_said_with_what_helps() -> None:
    observation = made.observation(ended="out of memory on the device: 2 GiB more were asked for")
    with pytest.raises(DoctorError, match="2 GiB more were asked for"):
        diagnose(observation)


def test_nothing_measured_is_an_error_that_says_why() -> None:
    with pytest.raises(DoctorError, match="made no step with a DataLoader"):
        diagnose(Observation(["train.py"], 4, 1))
    with pytest.raises(DoctorError, match="failed before enough was measured: ValueError: no data"):
        diagnose(Observation(["train.py"], 4, 1, ended="ValueError: no data"))
    short = made.healthy()
    short.ended = "script ended"
    short.phases[0] = made.phase(ACTUAL, 0.0005, 0.1, 0.1, steps=5)
    with pytest.raises(DoctorError, match="at least 8 after the first ones"):
        diagnose(short)
    few = made.observation(made.phase(ACTUAL, 0.1, 0.1, 0.1))
    with pytest.raises(DoctorError, match="Too few steps"):
        diagnose(few)


@pytest.mark.parametrize(
    ("grown", "samples", "found"),
    [
        ({ACTUAL: 60}, 10_000, False),
        ({ACTUAL: 60, SUPPLY: 60}, 10_000, True),
        ({ACTUAL: 17, SUPPLY: 8}, 10**6, False),  # as much as an allocator keeps in the first seconds
        ({ACTUAL: 60, SUPPLY: 60}, 2_000, False),  # too little in an epoch to matter
    ],
)
def test_workers_that_grow_on_are_found(grown: dict[str, int], samples: int, found: bool) -> None:
    observation = made.healthy()
    assert observation.loader is not None
    observation.loader.samples = samples
    observation.memory = {"allowed": 10**9, "shm_total": 10**9, "shm_free": 10**9}
    for phase in observation.phases:
        phase.worker_memory = [5 * 10**8, 5 * 10**8 + grown.get(phase.name, 0) * 10**6]
    diagnosis = diagnose(observation)
    findings = {finding.name: finding for finding in diagnosis.memory}
    assert ("workers that grow" in findings) == found
    assert diagnosis.verdict.kind == ("memory" if found else "healthy")
    if found:
        # 60 MB in each phase, of 40 batches of 32.
        assert findings["workers that grow"].details["bytes_per_sample"] == pytest.approx(12e7 / 2560)
        assert "NumPy arrays" in diagnosis.verdict.evidence[0]
        assert "gc.freeze()" in diagnosis.verdict.evidence[0]


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


def parts_of_the_step(**shares: float) -> Observation:
    """A step of 100 ms, of which other parts than these are the forward pass."""
    stages = {part: [100.0, 0.0, 4.0 * share, 0.0] for part, share in shares.items() if part != "gc"}
    stages["forward"] = [100.0, 0.0, 4.0 * (1 - sum(shares.values())), 0.0]
    observation = made.healthy()
    observation.looks = [made.look(phase, {"step": stages}, role="main") for phase in (ACTUAL, DEMAND)]
    for look in observation.looks:
        look["gc_seconds"] = 4.0 * shares.get("gc", 0.0)
    return observation


@pytest.mark.parametrize(
    ("part", "kind"),
    [("compile", "recompile"), ("checkpoint", "checkpoint"), ("logging", "logging"), ("gc", "gc")],
)
def test_a_part_that_not_each_batch_needs_is_the_cause(part: str, kind: str) -> None:
    diagnosis = diagnose(parts_of_the_step(**{part: 0.4}))
    assert diagnosis.verdict.kind == kind
    (advice,) = diagnosis.advice
    assert advice.ideal
    assert 1 / 0.6 <= advice.predicted < 1.1 / 0.6
    # The parts of the step proper are no cause.
    assert diagnose(parts_of_the_step(backward=0.4, optimizer=0.3)).verdict.kind == "healthy"


def test_where_the_time_goes_adds_up() -> None:
    observation = made.healthy()
    step = {"forward": [50.0, 0.0, 1.0, 0.0], "backward": [50.0, 0.0, 1.0, 0.0]}
    waiting = {"wait": [100.0, 100.0, 2.0, 2.0]}
    observation.looks = [made.look(ACTUAL, {"step": step, "wait": waiting}, role="main")]
    seconds = observation.phases[0].seconds
    observation.phases[0].ended += 3 * seconds
    observation.loops = [
        Loop("train.py:60", "DataLoader(Set)", {"num_workers": 0}, 1, 40, 1280, 2 * seconds, seconds)
    ]
    shares = {part.name: part.share for part in diagnose(observation).time}
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.02)
    assert shares["loop at train.py:60: waiting for data"] == pytest.approx(0.5)


def test_no_gain_is_above_the_bound_that_is_reported_with_it() -> None:
    observation = parts_of_the_step(logging=0.8)
    # Alone, the step logs nothing, and takes half as long: logging can't take more of it than the other half.
    observation.phases[1] = made.phase(DEMAND, 0, 0.05, 0.05)
    observation.looks = observation.looks[:1]
    diagnosis = diagnose(observation)
    (advice,) = diagnosis.advice
    assert advice.cause == "logging"
    assert advice.alone <= advice.predicted
    assert diagnosis.verdict.cost == pytest.approx(0.5, abs=0.03)


def test_a_validation_loop_that_waits_gets_workers() -> None:
    observation = made.healthy()
    seconds = observation.phases[0].seconds
    loop = Loop(
        "train.py:60", "DataLoader(Val)", {"num_workers": 0}, 1, 40, 1280, 1.5 * seconds, 0.5 * seconds
    )
    loop.supplies = {"0": [1.5 * seconds / 1280, 0.0], "4": [0.5 * seconds / 1280, 0.0]}
    observation.loops = [loop]
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "validation"
    assert "waits for its loader for 75% of that" in diagnosis.verdict.sentence
    (advice,) = diagnosis.advice
    assert (advice.where, advice.settings["loader"]["num_workers"]) == ("train.py:60", 4)
    # Of three times the training's seconds, 1.5 remain; 1 at least, whatever is done to the loop.
    assert diagnosis.verdict.cost == pytest.approx(0.5, abs=0.01)
    assert advice.ideal
    assert 3.0 <= advice.predicted < 3.2


def test_waiting_for_a_lock_is_a_cause_of_its_own() -> None:
    diagnosis = diagnose(made.one_stage("lock", 1.0))
    assert diagnosis.verdict.kind == "lock"
    assert "one file handle per worker" in diagnosis.advice[0].diff[0]


def test_threads_of_libraries_in_workers_are_named_with_the_line_to_add() -> None:
    observation = made.too_few_workers()
    observation.phases = observation.phases[:3]
    observation.phases.append(
        made.phase("supply worker_threads=1", 0.04, 0, 0.06, settings={"worker_threads": 1})
    )
    for look in observation.looks:
        look |= {"cpu_seconds": 4.0, "native_cpu_seconds": 3.0, "native_threads": 7, "libraries": ["cv2"]}
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "oversubscribed"
    assert "the 2 workers compute on 16 threads, with 4 cores" in diagnosis.verdict.sentence
    assert diagnosis.advice[0].diff[0].startswith("+cv2.setNumThreads(0)")
    assert diagnosis.advice[0].settings == {"worker_threads": 1}


def busy(observation: Observation, others: float) -> Observation:
    for phase in observation.phases:
        phase.others = others
    return observation


def test_a_busy_machine_makes_no_verdict_certain() -> None:
    assert diagnose(busy(made.too_few_workers(), 0.5)).verdict.confidence == pytest.approx(1 - 0.5 / 8)
    diagnosis = diagnose(busy(made.too_few_workers(), 2.0))
    assert diagnosis.verdict.kind == "workers"
    assert diagnosis.verdict.confidence == pytest.approx(0.75)
    (note,) = diagnosis.notes
    assert note.startswith("other processes used 2.0 of 4 cores")


@pytest.mark.parametrize("make", [made.healthy, made.too_few_workers])
def test_nothing_is_certain_where_the_load_is_above_the_number_of_cores(
    make: Callable[[], Observation],
) -> None:
    observation = make()
    assert diagnose(observation).verdict.confidence == 1.0
    observation.phases[0].load = 4.5
    assert diagnose(observation).verdict.confidence < 1.0


def test_a_step_that_others_hold_up_is_healthy() -> None:
    # Two workers that give a batch every 40 ms alone wait for cores for half of their time beside the step.
    observation = made.observation(
        made.phase(ACTUAL, 0.03, 0.1, 0.1),
        made.phase(DEMAND, 0, 0.1, 0.1),
        made.phase(SUPPLY, 0.12, 0, 0.08),
        made.phase("supply num_workers=4", 0.08, 0, 0.08, settings={"loader": {"num_workers": 4}}),
        looks=[made.look(SUPPLY, {}, delay=3.0)] * 2,
    )
    assert diagnose(observation).verdict.kind == "workers"
    diagnosis = diagnose(busy(observation, 3.0))
    assert diagnosis.verdict.kind == "healthy"
    assert "waits for 23% of its time (other processes hold it up)" in diagnosis.verdict.sentence
    assert diagnosis.verdict.confidence < 1.0
    assert "on a free one, the script would reach about 320 samples/s" in diagnosis.notes[0]


def test_workers_that_copy_the_memory_of_their_parent_are_found() -> None:
    observation = made.healthy()
    observation.memory = {"main_at_first": 5 * 10**8, "workers_at_first": 10**8, "allowed": 10**10}
    for phase in observation.phases:  # all is copied by the time that the workers are measured
        phase.worker_memory = [10**9, 10**9]
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "memory"
    assert "each since their first batch: 896 MB in all" in diagnosis.verdict.sentence
    assert "records in arrays" in diagnosis.advice[0].summary
    observation.memory["main_at_first"] = 4 * 10**9  # of which they copied a small part
    assert diagnose(observation).verdict.kind == "healthy"


def test_workers_that_copied_most_before_the_measurements_and_grow_a_little_are_found() -> None:
    observation = made.healthy()
    observation.memory = {"main_at_first": 10**8, "workers_at_first": 10**8, "allowed": 10**10}
    for phase in observation.phases:  # by more than noise, by too little to matter in an epoch
        phase.worker_memory = [9 * 10**8, 9 * 10**8 + 34 * 10**6]
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "memory"
    assert "each since their first batch: 830 MB in all" in diagnosis.verdict.sentence


@pytest.mark.parametrize(("batch", "kind"), [(10**6, "memory"), (10**8, "healthy")])
def test_workers_whose_memory_swings_by_their_batches_do_not_grow(batch: int, kind: str) -> None:
    observation = made.healthy()
    assert observation.loader is not None
    observation.loader.batch_nbytes = batch
    observation.memory = {"main_at_first": 10**8, "workers_at_first": 10**8, "allowed": 10**11}
    for phase in observation.phases:
        phase.worker_memory = [10**8, 9 * 10**8]
    assert diagnose(observation).verdict.kind == kind


def test_the_largest_part_of_the_step_is_named() -> None:
    sentence = diagnose(parts_of_the_step(optimizer=0.7)).verdict.sentence
    assert "spends 70% on the optimizer" in sentence


def test_workers_of_a_validation_loop_that_start_each_time_are_kept() -> None:
    observation = made.healthy()
    seconds = observation.phases[0].seconds
    arguments = {"num_workers": 2, "persistent_workers": False}
    loop = Loop("train.py:60", "DataLoader(Val)", arguments, 4, 40, 1280, 1.5 * seconds, 0.5 * seconds)
    loop.supplies = {"2": [0.1 * seconds / 1280, 0.0]}
    observation.loops = [loop]
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "validation"
    assert diagnosis.advice[0].summary == "train.py:60: persistent_workers=True"
    loop.arguments["persistent_workers"] = True
    assert diagnose(observation).verdict.kind == "healthy"


def test_a_step_that_waits_on_a_busy_machine_for_a_slower_loader_is_not_called_the_limit() -> None:
    observation = made.observation(
        made.phase(ACTUAL, 0.1, 0.08, 0.1),
        made.phase(DEMAND, 0, 0.05, 0.05),
        made.phase(SUPPLY, 0.1, 0, 0.06),
        looks=[
            made.look(SUPPLY, {"fetch": {"decode": [100, 0, 2.0, 0.0]}}, delay=3.9),
            made.look(ACTUAL, {}, role="main", delay=3.9),
        ],
    )
    verdict = diagnose(busy(observation, 3.9)).verdict
    assert verdict.kind != "healthy"


def test_causes_that_a_busy_machine_hides_are_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_doctor.doctor.diagnosis.DECIDED", 1.1)  # no resampling agrees so often
    diagnosis = diagnose(busy(made.one_stage("decode", 0.0), 3.9))
    assert diagnosis.verdict.kind == "decode"  # the only one
    observation = busy(made.startup(), 3.9)
    observation.loader.stages = {}  # type: ignore[union-attr]
    observation.phases[0] = made.phase(ACTUAL, 0.02, 0.05, 0.06, startups=[0.5, 0.5, 0.5])
    observation.phases.append(
        made.phase("supply num_workers=4", 0.01, 0, 0.02, settings={"loader": {"num_workers": 4}})
    )
    observation.phases[2] = made.phase(SUPPLY, 0.07, 0, 0.07)
    observation = busy(observation, 3.9)
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "undecided"
    assert len(diagnosis.causes) == 3
    assert "other processes used 3.9 of 4 cores" in diagnosis.verdict.sentence


def test_the_step_alone_bounds_what_a_stage_brings() -> None:
    # The stage holds 80 % of loading; a fix may speed up the rest as well, as smaller images do.
    observation = made.one_stage("decode", 0.0)
    observation.phases[1] = made.phase(DEMAND, 0, 0.01, 0.01)
    (first, *_) = diagnose(observation).advice
    assert first.ideal
    assert 10 <= first.predicted < 10.5


def test_a_bound_allows_for_what_is_not_known_of_the_step() -> None:
    observation = made.one_stage("decode", 0.0)
    observation.phases[1].computes = [0.01, 0.03] * 20
    (first, *_) = diagnose(observation).advice
    assert 5 * 1.1 < first.predicted < 5 * 1.3
    # Nor does the step need the time that its thread waited for a core.
    observation.looks.append(made.look(DEMAND, {}, role="main", delay=2.0))
    (first, *_) = diagnose(observation).advice
    assert first.predicted > 10


def test_workers_that_are_started_again_are_found_before_an_epoch_has_ended() -> None:
    observation = made.startup()
    observation.phases[0].startups = []
    assert diagnose(observation).verdict.kind == "healthy"
    assert observation.loader is not None
    observation.loader.first_batch_seconds = 0.5
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "startup"
    assert "each epoch starts workers for 0.50 s, 50% of its time" in diagnosis.verdict.sentence
    observation.loader.arguments["persistent_workers"] = True
    assert diagnose(observation).verdict.kind == "healthy"


def test_single_samples_that_take_long_are_not_the_fault_of_the_stage_that_they_are_in() -> None:
    observation = made.straggler()
    observation.phases = [phase for phase in observation.phases if "num_workers" not in phase.name]
    # On average the loader is fast enough: batches in order wait for the slow ones.
    observation.phases[0] = made.phase(ACTUAL, 0.01, 0.06, 0.1)
    observation.phases[1:3] = [made.phase(DEMAND, 0, 0.06, 0.06), made.phase(SUPPLY, 0.05, 0, 0.06)]
    blocked = {
        "fetch": {"dataset:__getitem__ (set.py:12)": [390, 380, 3.9, 3.8], "collate": [10, 0, 0.1, 0.0]}
    }
    observation.looks += [made.look(SUPPLY, blocked)] * 2
    diagnosis = diagnose(busy(observation, 2.5))
    assert diagnosis.verdict.kind == "straggler"
    assert diagnosis.advice[0].settings == {"loader": {"in_order": False}}
    assert "dataset" not in {cause.kind for cause in diagnosis.causes}


def test_the_parts_of_a_step_are_those_of_the_close_look() -> None:
    observation = parts_of_the_step(checkpoint=0.05, optimizer=0.6)
    callback = "code:count_confusions (train.py:30)"
    close = {callback: [150, 0, 1.2, 0.0], "backward": [50, 0, 0.3, 0.0], "checkpoint": [9, 0, 0.1, 0.0]}
    observation.looks.append(made.look(PARTS, {"step": close}, role="main"))
    diagnosis = diagnose(observation)
    shares = {part.name: part.share for part in diagnosis.time}
    # What not each batch needs is as in the actual phase, the rest divides as in the close look.
    assert shares["count_confusions (train.py:30)"] == pytest.approx(0.76)
    assert shares["the backward pass"] == pytest.approx(0.19)
    assert shares["writing checkpoints"] == pytest.approx(0.05)
    assert "spends 76% on count_confusions (train.py:30)" in diagnosis.verdict.sentence


def test_a_close_look_of_one_sample_suffices() -> None:
    observation = parts_of_the_step(optimizer=0.6)
    observation.looks.append(made.look(PARTS, {"step": {"optimizer": [1, 0, 8.0, 0.0]}}, role="main"))
    assert "spends 100% on the optimizer" in diagnose(observation).verdict.sentence


@pytest.mark.parametrize("key", ["lock", "read"])
def test_samples_of_uneven_length_do_not_hide_the_stage_that_they_wait_in(key: str) -> None:
    observation = made.one_stage(key, 1.0)
    bins = [[0.002, 1000], [0.1, 60]]  # most of the time is that of few samples
    observation.looks.append(made.look(ACTUAL, {}, bins=bins, slowest=[[0.1, 7]]))
    assert diagnose(observation).verdict.kind == key
    if key == "lock":  # even where a longer queue was tried
        settings = {"loader": {"in_order": False}}
        observation.phases.append(made.phase("supply in_order=False", 0.1, 0, 0.2, settings=settings))
        assert diagnose(observation).verdict.kind == key


def test_a_checkpoint_within_the_close_look_does_not_lower_demand() -> None:
    observation = made.healthy()
    close = made.phase(PARTS, 0, 0.1, 0.1, steps=15)
    close.computes[7] += 1.0
    close.ended += 1.0
    observation.phases.append(close)
    step = {"forward": [100.0, 0.0, 1.5, 0.0], "checkpoint": [70.0, 0.0, 1.0, 0.0]}
    observation.looks = [made.look(PARTS, {"step": step}, role="main") | {"seconds": 2.5}]
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "healthy"
    assert "320 with data at no cost" in diagnosis.verdict.sentence
    assert PARTS not in {rate.name for rate in diagnosis.rates}


def test_what_each_step_logs_is_left_out_of_demand() -> None:
    observation = made.healthy()
    observation.phases.append(made.phase(PARTS, 0, 0.1, 0.1, steps=15))
    step = {"forward": [40.0, 0.0, 1.6, 0.0], "logging": [60.0, 0.0, 2.4, 0.0]}
    looks = [made.look(phase, {"step": step}, role="main") for phase in (ACTUAL, PARTS)]
    observation.looks = looks
    (advice,) = diagnose(observation).advice
    assert advice.cause == "logging"
    assert 2.5 <= advice.predicted < 3.0


def test_the_processor_time_of_what_each_step_logs_takes_no_cores_from_loading() -> None:
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
    assert diagnose(observation).verdict.kind == "logging"


def test_fewer_threads_are_promised_no_less_than_their_fastest_steps_show() -> None:
    observation = made.oversubscribed()
    observation.phases[2].computes = [0.04] * 20 + [0.06] * 20  # as the machine warms up, or cools down
    (advice,) = diagnose(observation).advice
    assert advice.ideal
    assert advice.predicted >= 0.101 / 0.04


def test_a_step_with_a_number_of_threads_that_was_not_measured_has_no_bound() -> None:
    observation = made.observation(
        made.phase(ACTUAL, 0.15, 0.05, 0.1),
        made.phase(DEMAND, 0, 0.04, 0.04),
        made.phase(SUPPLY, 0.06, 0, 0.06),
        threads=4,
    )
    advice = diagnose(observation).advice[0]
    assert advice.settings == {"threads": 2}
    assert advice.predicted == 0.0
    assert gain(advice) == "gain not known"


def test_the_fastest_round_of_batches_bounds_what_a_change_brings() -> None:
    observation = made.one_stage("decode", 0.0)
    observation.phases[1].computes = [0.02] * 20 + [0.012] * 20
    (first, *_) = diagnose(observation).advice
    assert first.ideal
    assert first.predicted >= 0.1 / 0.012


def test_a_script_that_ends_before_its_step_was_measured_alone_is_undecided() -> None:
    observation = made.healthy()
    observation.ended = "script ended"
    del observation.phases[1]
    diagnosis = diagnose(observation)
    assert diagnosis.verdict.kind == "undecided"
    assert "ended after 40 steps" in diagnosis.verdict.sentence
    assert "give it more steps" in diagnosis.verdict.sentence
    ill = made.too_few_workers()
    ill.ended = "script ended"
    del ill.phases[1]
    diagnosis = diagnose(ill)
    assert diagnosis.verdict.kind == "workers"
    assert diagnosis.advice[0].predicted == 0.0  # nothing tells how fast the step is alone


@pytest.mark.parametrize(("decoding", "verdict"), [(2.56, "read"), (10.24, "decode")])
def test_stages_of_headraces_loader_count_with_the_threads_that_they_have(
    decoding: float, verdict: str
) -> None:
    observation = made.too_few_workers()
    observation.phases = observation.phases[:3]
    assert observation.loader is not None
    observation.loader.kind = "headrace"
    observation.loader.stages = {
        "read": [1280, 64.0, 32],
        "decode": [1280, decoding, 2],
        "collate": [1280, 0.128, 1],
    }
    diagnosis = diagnose(observation)
    rates = {stage.name: stage.samples_per_second for stage in diagnosis.stages}
    assert rates == pytest.approx({"read": 640, "decode": 2560 / decoding, "collate": 10_000})
    assert len({stage.place for stage in diagnosis.stages}) == 3
    assert diagnosis.verdict.kind == verdict


def test_what_calls_transforms_is_no_stage_of_its_own() -> None:
    calling = {"transform:": [10, 0, 0.1, 0.0]}
    transforms = {"transform:Crop": [30, 0, 0.3, 0.0], "transform:Flip": [60, 0, 0.6, 0.0]}
    observation = made.too_few_workers()
    observation.looks = [made.look(SUPPLY, {"fetch": calling | transforms})]
    seconds = {one.name: one.seconds_per_sample * 1280 for one in diagnose(observation).stages}
    assert seconds == pytest.approx({"Crop": 1 / 3, "Flip": 2 / 3})
    observation.looks = [made.look(SUPPLY, {"fetch": calling})]
    assert [one.name for one in diagnose(observation).stages] == ["transform"]


def test_a_step_whose_time_could_not_be_measured_is_too_little_to_go_on() -> None:
    """As where a loop over another loader, in another thread, lasted throughout the few steps of a script."""
    observation = made.observation(made.phase(ACTUAL, 0.1, 0.0, 0.1), made.phase(SUPPLY, 0.1, 0, 0.1))
    with pytest.raises(DoctorError, match="Too few steps"):
        diagnose(observation)
