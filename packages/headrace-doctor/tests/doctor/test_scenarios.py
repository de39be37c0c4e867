"""Ordinary scripts, each with a cause that the doctor knows, and how its answers count."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from headrace_doctor.doctor.records import Advice, Cause, Diagnosis, Rate
from headrace_doctor.doctor.verdicts import KINDS
from support.jpegs import image_folder

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"
NAMES = sorted(path.stem for path in (BENCHMARKS / "scenarios").glob("*.py"))

RATES = tuple(Rate(name, 100.0, 90.0, 110.0, 20, 1.0) for name in ("supply", "demand", "actual"))
DIAGNOSIS = Diagnosis(
    command=("train.py",),
    loader="DataLoader(ImageFolder, batch_size=4)",
    where="train.py:9",
    causes=(Cause("workers", "0 workers", (), 0.5, 0.9), Cause("decode", "slow", (), 0.2)),
    advice=(
        Advice("decode", "smaller pictures", (), 3.0, measured=1.0),
        Advice("workers", "num_workers=0 → 2", (), 1.9, {"loader": {"num_workers": 2}}, measured=1.6),
    ),
    rates=RATES,
    stall=0.5,
    stages=(),
    cores=2,
)


def module(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module(name)


def test_each_script_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scenarios = module(monkeypatch, "scenario_list").SCENARIOS
    assert sorted(scenario.name for scenario in scenarios) == NAMES
    assert len(NAMES) >= 34
    assert (
        sum(scenario.expected == ("healthy",) for scenario in module(monkeypatch, "scenario_list").SCENARIOS)
        >= 8
    )


@pytest.mark.parametrize("name", NAMES)
def test_it_compiles_healed_too_and_looks_ordinary(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    scenarios = module(monkeypatch, "scenario_list").SCENARIOS
    scenario = next(scenario for scenario in scenarios if scenario.name == name)
    source = scenario.script.read_text(encoding="utf-8")
    compile(source, name, "exec")
    compile(scenario.fixed(), name, "exec")
    assert "headrace" not in source.lower()
    assert set(scenario.expected) <= set(KINDS)
    mended = scenario.fixed() != source or scenario.fixed_data or scenario.slow_mount
    assert bool(mended) == (scenario.expected != ("healthy",))


def test_a_cure_that_no_longer_fits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = module(monkeypatch, "scenario_list").SCENARIOS[0]
    with pytest.raises(ValueError, match="0 times instead of once"):
        replace(scenario, fix=(("no such line", ""),)).fixed()


def test_a_verdict_counts_by_its_kind_its_words_and_the_rank_of_the_true_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge = module(monkeypatch, "doctor").judge
    by_name = {scenario.name: scenario for scenario in module(monkeypatch, "scenario_list").SCENARIOS}
    row = judge(by_name["too_few_workers"], DIAGNOSIS)
    assert (row["named"], row["right"], row["rank"], row["margin"]) == ("workers", True, 1, 0.9)
    second = judge(by_name["huge_pictures"], DIAGNOSIS)
    assert (second["right"], second["rank"]) == (False, 2)
    assert judge(by_name["healthy"], DIAGNOSIS)["rank"] is None
    verdict = Cause("healthy", "the step spends 70% on the optimizer", (), 0.0)
    named = replace(DIAGNOSIS, causes=(verdict,))
    assert judge(by_name["costly_optimizer"], named)["right"]
    assert not judge(by_name["python_metrics"], named)["right"]


@pytest.mark.parametrize(
    ("predicted", "near"),
    [(1.9, True), (2.4, True), (1.5, False)],
)
def test_a_bound_holds_where_the_gain_is_not_above_it(
    monkeypatch: pytest.MonkeyPatch, predicted: float, near: bool
) -> None:
    doctor = module(monkeypatch, "doctor")
    monkeypatch.setattr(doctor, "seconds_of", lambda _: 0.5)
    job = SimpleNamespace(run=lambda quiet: (0, SimpleNamespace(refused=False), ""))
    row = {"predicted": predicted}
    found = doctor.achieved(row, replace(DIAGNOSIS, seconds_per_sample=1.0), job)
    assert found == {"achieved": 2.0, "near": near}


def test_totals_count_errors_as_wrong_and_leave_out_what_was_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    doctor = module(monkeypatch, "doctor")
    rows = [
        {
            "name": "a",
            "expected": ["workers"],
            "named": "workers",
            "right": True,
            "near": True,
            "seconds": 30.0,
        },
        {"name": "b", "expected": ["healthy"], "named": "workers", "right": False, "seconds": 20.0},
        {"name": "c", "expected": ["gil"], "error": "exit code 1", "seconds": 2.0},
        {"name": "d", "expected": ["copy"], "skipped": "no CUDA device"},
        {"name": "e", "expected": ["healthy"], "named": "undecided", "right": False, "seconds": 20.0},
    ]
    found = doctor.totals(rows)
    assert (found["examined"], found["skipped"], found["right"], found["near"], found["tried"]) == (
        4,
        1,
        1,
        1,
        1,
    )
    assert (found["healthy"], found["healthy_called_ill"]) == (2, 1)


@pytest.mark.parametrize("broken", [False, True])
def test_results_are_kept_and_not_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: bool
) -> None:
    doctor = module(monkeypatch, "doctor")
    asked: list[str] = []

    def examine(scenario: Any, data: Path) -> dict[str, Any]:
        asked.append(scenario.name)
        row = {"name": scenario.name, "expected": ["healthy"], "load": 0.1, "seconds": 1.0}
        return row | ({"error": "it ended"} if broken else doctor.judge(scenario, DIAGNOSIS))

    monkeypatch.setattr(doctor, "examine", examine)
    out = tmp_path / "out.json"
    for names in (["healthy"], ["healthy", "slow_start"]):
        monkeypatch.setattr(sys, "argv", ["doctor.py", "--json", str(out), "--only", *names])
        doctor.main()
    assert asked == ["healthy", "slow_start"]
    assert json.loads(out.read_text())["totals"]["examined"] == 2
    assert "| `slow_start` | healthy |" in out.with_suffix(".md").read_text()


def run(name: str, data: Path, *arguments: str) -> str:
    command = [
        sys.executable,
        str(BENCHMARKS / "scenarios" / f"{name}.py"),
        "--data",
        str(data),
        "--epochs",
        "1",
    ]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.long
def test_three_steps_on_pictures(tmp_path: Path) -> None:
    image_folder(tmp_path, 12)
    assert " samples/s\n" in run("too_few_workers", tmp_path, "--batch-size", "4")


@pytest.mark.slow
@pytest.mark.long
def test_three_steps_on_recordings(tmp_path: Path) -> None:
    values = np.zeros((12 * 200, 16), np.float32)
    np.savez(tmp_path / "r.npz", values=values, starts=np.arange(0, 2600, 200), labels=np.zeros(12, np.int64))
    assert " samples/s\n" in run("slow_collate", tmp_path / "r.npz", "--batch-size", "4")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["pageable_copy", "item_each_step"])
def test_without_a_gpu_those_for_one_say_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        run(name, tmp_path)
    assert error.value.stderr == "this script needs a GPU: torch.cuda.is_available() is False\n"
