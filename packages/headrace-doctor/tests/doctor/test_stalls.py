"""The benchmark of data stalls: its scripts, how it grades answers, and that it resumes."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from headrace_doctor.doctor.verdicts import KINDS
from support.jpegs import image_folder

STALLS = Path(__file__).parents[4] / "benchmarks" / "stalls"
PATHS = sorted(STALLS.glob("scenarios/*/*.py"), key=lambda path: path.stem)


@pytest.fixture
def stalls(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark's command, whose modules it imports."""
    monkeypatch.syspath_prepend(STALLS.parent)
    monkeypatch.syspath_prepend(STALLS)
    return importlib.import_module("run")


def scenario_of(stalls: ModuleType, name: str) -> Any:
    return next(one for one in stalls.SCENARIOS if one.name == name)


def test_each_script_belongs_to_a_family_under_a_name_of_its_own(stalls: ModuleType) -> None:
    assert sorted(one.name for one in stalls.SCENARIOS) == [path.stem for path in PATHS]
    assert len({path.stem for path in PATHS}) == len(PATHS) >= 48
    assert sum(one.family == "healthy" for one in stalls.SCENARIOS) >= 8
    assert set(sys.modules["scenario"].KINDS) == set(KINDS)
    assert not {path.stem for path in PATHS} & set(sys.modules["scenario"].FAMILIES)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_script_has_the_form_that_the_readme_describes(stalls: ModuleType, path: Path) -> None:
    scenario, kinds = scenario_of(stalls, path.stem), sys.modules["scenario"].KINDS
    assert set(scenario.expected) <= {*kinds, "step"}
    if scenario.family != "unknown":
        assert scenario.family in {kinds.get(kind) for kind in scenario.expected}
    original, fixed = (scenario.script(fixed) for fixed in (False, True))
    compile(fixed, path.stem, "exec")
    assert ast.get_docstring(ast.parse(original)) is None
    assert original.count("\n") == path.read_text(encoding="utf-8").count("\n")
    assert not {"headrace", "bottleneck", "expected:"} & set(original.lower().split())
    assert {"--data", "--epochs", "samples/s"} <= {
        text for text in ("--data", "--epochs", "samples/s") if text in original
    }
    removed = fixed != original or scenario.field("fixed data") or scenario.field("mount")
    assert bool(removed) == (scenario.family != "healthy")


def test_an_exchange_whose_lines_are_not_there_is_refused(stalls: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text('"""Some."""\n\n# expected: read\n# fix:\n# -there\n# +other\n\nhere\n')
    with pytest.raises(ValueError, match="0 times instead of once"):
        sys.modules["scenario"].Scenario(path).script(fixed=True)


@pytest.mark.parametrize(
    ("name", "answer", "grade"),
    [
        ("huge_pictures", {"kind": "decode"}, "right"),
        ("huge_pictures", {"kind": "loading"}, "half"),
        ("huge_pictures", {"kind": "step"}, "wrong"),
        ("huge_pictures", {"kind": "undecided"}, "undecided"),
        ("huge_pictures", {}, "undecided"),
        ("huge_pictures", None, "failed"),
        ("straggler", {"kind": "oversubscribed"}, "half"),
        ("collecting_garbage", {"kind": "step"}, "half"),
        ("zip_per_sample", {"kind": "read", "cause": "reading"}, "half"),
        (
            "zip_per_sample",
            {"kind": "read", "line": "with zipfile.ZipFile(self.path):", "advice": "Once per worker"},
            "right",
        ),
        ("healthy_images", {"kind": "healthy"}, "right"),
        ("healthy_images", {"kind": "loading"}, "wrong"),
    ],
)
def test_answers_are_graded(stalls: ModuleType, name: str, answer: dict[str, str] | None, grade: str) -> None:
    row = {"name": name} if answer is None else {"name": name, "answer": answer}
    assert stalls.score.grade(scenario_of(stalls, name), row) == grade


ENTRANT = """
import json, pathlib, sys
with open("asked", "a") as file:
    file.write(sys.argv[1].rsplit("/", 1)[1] + " ")
source = pathlib.Path(sys.argv[1]).read_text()
if "ElasticTransform" in source:
    sys.exit("it failed")
print("some output")
measured = 2.2 if sys.argv[3].endswith("/png") else 2.5
answer = {"kind": "decode", "gain": 2.0, "at_most": 4.0, "measured": measured, "samples_per_second": 50}
print(json.dumps(answer))
"""


def test_a_run_resumes_and_its_folder_becomes_a_page(
    stalls: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("entrant.py").write_text(ENTRANT)
    data, results = tmp_path / "data" / "stalls", tmp_path / "results"
    results.mkdir()
    for name in ("png", "huge"):
        (data / name).mkdir(parents=True)
    monkeypatch.setattr(sys.modules["training_data"], "ensure", lambda folder, name: folder / "stalls" / name)

    known = (
        "png_decoding huge_pictures frame_of_animation seeks_for_each_frame size_by_decoding heavy_transform"
    )
    some = [one for one in stalls.SCENARIOS if one.name in known.split()]  # whatever is added to the family
    monkeypatch.setattr(stalls, "SCENARIOS", some)

    def run(*names: str) -> None:
        options = ["--data", "data", "--json", "results/mine.json", "--only", *names]
        monkeypatch.setattr(sys, "argv", ["run.py", "--entrant", f"{sys.executable} entrant.py", *options])
        stalls.main()

    run("png_decoding")
    run("decoding", "heavy_transform")
    assert Path("asked").read_text().split() == ["train.py"] * 6
    gains = {"rows": [{"name": "png_decoding", "original": [75, 75], "fixed": [150, 160]}]}
    (results / "gains.json").write_text(json.dumps(gains))
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["run.py", "--table", "results"])
    stalls.main()
    page = capsys.readouterr().out
    assert "| `png_decoding` | decoding | 2.07 | decode ✓ 2.00 |" in page
    assert "| `heavy_transform` | augmentation |  | failed ✗ |" in page
    assert "| mine | 6 | 2 | 3 | 0 | 0 | 1 | 50% | 0 of 0 | 1 of 1 | 1 of 5 | 1 of 1 | 50% |" in page
    assert "| decoding | 5 |  |\n| augmentation |  | 1 |" in page


def test_the_page_of_results_is_what_the_command_draws(stalls: ModuleType) -> None:
    folders = sorted(path for path in STALLS.glob("results/*") if path.is_dir())
    assert (STALLS / "RESULTS.md").read_text(encoding="utf-8") == stalls.score.page(folders)


def test_what_an_entrant_started_ends_with_it(stalls: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "LIMIT_SECONDS", 1.0)
    with pytest.raises(RuntimeError, match="no end after 1 s"):
        stalls.output_of(["bash", "-c", "sleep 100 & wait"])
    with pytest.raises(RuntimeError, match="exit code 3: oh"):
        stalls.output_of(["bash", "-c", "echo oh >&2; exit 3"])


def run_script(stalls: ModuleType, name: str, data: Path) -> str:
    with stalls.prepared(scenario_of(stalls, name), data) as (script, *_):
        command = [sys.executable, script, "--data", str(data), "--epochs", "1", "--batch-size", "4"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.long
def test_two_scripts_train(stalls: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["training_data"], "ensure", lambda folder, name: folder)
    image_folder(tmp_path / "images", 12)
    assert " samples/s\n" in run_script(stalls, "too_few_workers", tmp_path / "images")
    values, recordings = np.zeros((12 * 200, 16), np.float32), tmp_path / "r.npz"
    np.savez(recordings, values=values, starts=np.arange(0, 2600, 200), labels=np.zeros(12, np.int64))
    assert " samples/s\n" in run_script(stalls, "slow_collate", recordings)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("entrant", ["doctor", "profiler", "rules"])
def test_an_entrant_answers_and_finds_nothing_wrong(stalls: ModuleType, tmp_path: Path, entrant: str) -> None:
    row = stalls.row_of(entrant, scenario_of(stalls, "healthy_tabular"), tmp_path)
    assert row["answer"]["kind"] in ("healthy", "undecided"), row
    assert row["answer"]["samples_per_second"] > 0
