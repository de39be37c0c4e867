"""Ordinary scripts, each with a cause that the doctor knows, and how its answers count."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from headrace.doctor.records import KINDS, Advice, Cause, Diagnosis, Rate
from support.jpegs import image_folder

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
NAMES = sorted(path.stem for path in (BENCHMARKS / "scenarios").glob("*.py"))

RATES = tuple(Rate(name, 100.0, 90.0, 110.0, 20, 1.0) for name in ("supply", "demand", "actual"))
DIAGNOSIS = Diagnosis(
    command=("train.py",),
    loader="DataLoader(ImageFolder, batch_size=4)",
    where="train.py:9",
    causes=(Cause("workers", "0 workers", (), 0.5, 0.9), Cause("decode", "slow", (), 0.2, 0.4)),
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
    assert len(NAMES) == 19


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


def test_the_advice_for_the_cause_that_was_named_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = module(monkeypatch, "doctor").judge
    row = judge(("workers",), DIAGNOSIS.to_json())
    assert (row["named"], row["right"], row["confidence"]) == ("workers", True, 0.9)
    assert (row["predicted"], row["measured"], row["near"]) == (1.9, 1.6, True)
    assert not judge(("read", "decode"), DIAGNOSIS.to_json())["right"]
    advice = (replace(DIAGNOSIS.advice[1], measured=1.5),)
    assert not judge(("workers",), replace(DIAGNOSIS, advice=advice).to_json())["near"]


def test_totals_count_errors_as_wrong_and_leave_out_what_was_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    doctor = module(monkeypatch, "doctor")
    rows = [
        {"name": "a", "expected": ("workers",), **doctor.judge(("workers",), DIAGNOSIS.to_json())},
        {"name": "b", "expected": ("healthy",), **doctor.judge(("healthy",), DIAGNOSIS.to_json())},
        {"name": "c", "expected": ("gil",), "error": "exit code 1"},
        {"name": "d", "expected": ("copy",), "skipped": "no CUDA device"},
    ]
    assert doctor.totals(rows) == {
        "examined": 3,
        "skipped": 1,
        "right": 1,
        "near": 2,
        "tried": 2,
        "healthy_misjudged": 1,
    }


FAKE = """
import json, pathlib, sys
verb, script = sys.argv[1:6], sys.argv[6:]
if verb[:4] != ["doctor", "run", "--try", "--json"] or script[1] != "--data":
    sys.exit(f"not asked for that: {sys.argv}")
if script[2] != "ill":
    pathlib.Path(verb[4]).write_text(pathlib.Path(script[2]).read_text())
sys.exit(0 if script[2] != "ill" else "nothing measured")
"""


@pytest.mark.parametrize("found", [True, False])
def test_a_diagnosis_is_read_and_its_lack_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: bool
) -> None:
    doctor = module(monkeypatch, "doctor")
    (tmp_path / "diagnosis.json").write_text(json.dumps(DIAGNOSIS.to_json()))
    (tmp_path / "fake.py").write_text(FAKE)
    data = tmp_path / "diagnosis.json" if found else Path("ill")
    monkeypatch.setattr(doctor, "HEADRACE", [sys.executable, str(tmp_path / "fake.py")])
    monkeypatch.setattr("scenario_data.ensure", lambda *_: data)
    row = doctor.examine(module(monkeypatch, "scenario_list").SCENARIOS[0], tmp_path, limit=60.0)
    if found:
        assert row["right"]
        assert row["named"] == "workers"
    else:
        assert row["error"] == "exit code 1, no diagnosis: nothing measured\n"


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
