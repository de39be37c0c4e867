"""The page that users copy from, and the command, are one training."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from signal import SIGINT, SIGTERM, SIGUSR1

import pytest

from headrace.recipes import train
from support import tiny_recipe as tiny

EXAMPLE = Path(__file__).parents[4] / "examples" / "imagenet.py"


def run_example(monkeypatch: pytest.MonkeyPatch, data: Path, out: Path, *more: str) -> int:
    options = "--arch tiny_batchnorm --epochs 3 --batch-size 12 --warmup-epochs 0.5 --lr 0.05 --ema 0.5"
    arguments = [str(data), "--out", str(out), "--size", "32", "--val-resize", "40", *options.split(), *more]
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_example_trains_the_weights_of_the_command(
    accumulate: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny.recipe(data, tmp_path / "command", accumulate=accumulate))
    assert run_example(monkeypatch, data, tmp_path / "example", "--accumulate", str(accumulate)) == 0
    command, example = (tiny.checkpoint(tmp_path / name) for name in ("command", "example"))
    for part in ("model", "average"):
        assert tiny.difference(command[part], example[part]) == 0
    assert example["best"] == pytest.approx(100 * command["best_top1"])
    best = [tiny.checkpoint(tmp_path / name, "best.pt")["step"] for name in ("command", "example")]
    assert best[0] <= best[1]  # where two epochs are equally good the example keeps the later


@pytest.mark.parametrize(("step", "number", "code"), [(1, SIGTERM, 75), (4, SIGINT, 130), (7, SIGUSR1, 75)])
def test_the_example_stops_and_resumes(
    step: int, number: int, code: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_example(monkeypatch, data, tmp_path / "whole") == 0
    tiny.before_pass.append(tiny.stop_at(step, (number,)))
    assert run_example(monkeypatch, data, tmp_path / "cut", "--resume") == code
    tiny.before_pass.clear()
    assert tiny.checkpoint(tmp_path / "cut")["step"] == step
    assert run_example(monkeypatch, data, tmp_path / "cut", "--resume") == 0
    whole, cut = (tiny.checkpoint(tmp_path / name) for name in ("whole", "cut"))
    for part in ("model", "average"):
        assert tiny.difference(whole[part], cut[part]) == 0


def test_a_missing_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path / "nope"), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match=r"nope/train.*\nDATA must hold train/CLASS"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert not (tmp_path / "out").exists()


def test_a_finished_run_says_so(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert run_example(monkeypatch, data, tmp_path / "out", "--resume") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == said[-2]
    assert re.fullmatch(rf"finished: 3 epochs, best top-1 [\d.]+ %: {tmp_path}/out/best\.pt", said[-1])


def test_the_example_is_one_page() -> None:
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) <= 300
    assert "headrace.recipes" not in text
