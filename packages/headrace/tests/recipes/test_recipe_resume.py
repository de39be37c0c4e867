"""A run that was interrupted is the run that wasn't."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import headrace
from headrace.recipes import train
from support import tiny_recipe as tiny
from support.python import run_python

STEPS = 12  # 3 epochs of 50 images in batches of 12


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts."""
    out = tmp_path_factory.mktemp("whole")
    torch.set_num_threads(1)
    outcome = train(tiny.recipe(data, out))
    assert outcome.steps == STEPS
    assert outcome.stopped_by is None
    return out


def assert_same_run(out: Path, whole: Path) -> None:
    ours, theirs = tiny.checkpoint(out), tiny.checkpoint(whole)
    for part in ("model", "average"):
        assert tiny.difference(ours[part], theirs[part]) == 0, part
    momentum = [state["optimizer"]["state"] for state in (ours, theirs)]
    assert all(
        torch.equal(momentum[0][i]["momentum_buffer"], momentum[1][i]["momentum_buffer"]) for i in momentum[0]
    )
    assert torch.equal(ours["random"][0]["cpu"], theirs["random"][0]["cpu"])
    for part in ("step", "epoch", "top1", "best_top1", "loader", "scheduler"):
        assert ours[part] == theirs[part], part


def test_training_changes_the_weights(data: Path, whole: Path, tmp_path: Path) -> None:
    """Without this, runs that learn nothing would be equal, too."""
    train(tiny.recipe(data, tmp_path, epochs=1))
    assert tiny.difference(tiny.checkpoint(tmp_path)["model"], tiny.checkpoint(whole)["model"]) > 0.01


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_signal_during_any_step_changes_no_bit(step: int, data: Path, whole: Path, tmp_path: Path) -> None:
    recipe = tiny.recipe(data, tmp_path, resume="auto")
    tiny.before_pass.append(tiny.stop_at(step))
    stopped = train(recipe)
    tiny.before_pass.clear()
    assert stopped.stopped_by == "SIGTERM"
    assert stopped.steps == step
    assert (tmp_path / "preempted").read_text() == f"{step}\n"
    resumed = train(recipe)
    assert resumed.stopped_by is None
    assert not (tmp_path / "preempted").exists()
    assert_same_run(tmp_path, whole)


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_a_signal_during_an_evaluation_changes_no_bit(
    number: int, data: Path, whole: Path, tmp_path: Path
) -> None:
    """25 images in batches of 12: three passes each."""
    recipe = tiny.recipe(data, tmp_path, resume="auto")
    tiny.before_evaluation_pass.append(tiny.stop_at(number))
    stopped = train(recipe)
    tiny.before_evaluation_pass.clear()
    assert stopped.stopped_by == "SIGTERM"
    assert (stopped.steps, stopped.epochs) == ((4, 0) if number <= 3 else (8, 1))
    train(recipe)
    assert_same_run(tmp_path, whole)


@pytest.mark.parametrize(
    ("signals", "stopped_by"),
    [
        ((signal.SIGINT,), "SIGINT"),
        ((signal.SIGUSR1,), "SIGUSR1"),
        ((signal.SIGINT, signal.SIGTERM), "SIGTERM"),
        ((signal.SIGTERM, signal.SIGINT), "SIGTERM"),
    ],
)
def test_other_signals_save_too(
    signals: tuple[int, ...], stopped_by: str, data: Path, whole: Path, tmp_path: Path
) -> None:
    """A scheduler starts again what it preempted, not what a person ended by Ctrl-C."""
    recipe = tiny.recipe(data, tmp_path, resume="auto")
    tiny.before_pass.append(tiny.stop_at(6, signals))
    stopped = train(recipe)
    tiny.before_pass.clear()
    assert (stopped.stopped_by, stopped.steps) == (stopped_by, 6)
    assert (tmp_path / "preempted").exists() == (stopped_by != "SIGINT")
    train(recipe)
    assert_same_run(tmp_path, whole)


def test_a_second_ctrl_c_ends_at_once(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny.before_pass.append(tiny.stop_at(6, (signal.SIGINT, signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt):
        train(tiny.recipe(data, tmp_path))
    assert tiny.checkpoint(tmp_path)["step"] == 4  # of the first epoch's end
    assert "Interrupted: finishing and saving this step. Ctrl-C once more" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_where_ctrl_c_is_ignored_it_stays_so(data: Path, tmp_path: Path) -> None:
    """As in a shell's background jobs, which Ctrl-C isn't meant for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tiny.before_pass.append(tiny.stop_at(2, (signal.SIGINT, signal.SIGINT)))
    assert train(tiny.recipe(data, tmp_path, epochs=1)).stopped_by is None
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_accumulating_resumes_between_steps(data: Path, tmp_path: Path) -> None:
    plain, cut = (
        tiny.recipe(data, tmp_path / name, accumulate=3, resume="auto") for name in ("plain", "cut")
    )
    train(plain)
    tiny.before_pass.append(tiny.stop_at(8))  # in the second of three parts of step 3
    assert train(cut).steps == 3
    tiny.before_pass.clear()
    train(cut)
    assert_same_run(tmp_path / "cut", tmp_path / "plain")


def test_checkpoints_in_the_middle_of_an_epoch(data: Path, whole: Path, tmp_path: Path) -> None:
    """As after a crash: what was done since the last checkpoint is done again."""

    def crash(number: int) -> None:
        if number == 8:
            raise ZeroDivisionError

    recipe = tiny.recipe(data, tmp_path, checkpoint_every=3, resume="auto")
    tiny.before_pass.append(crash)
    with pytest.raises(ZeroDivisionError):
        train(recipe)
    tiny.before_pass.clear()
    assert tiny.checkpoint(tmp_path)["step"] == 6
    train(recipe)
    assert_same_run(tmp_path, whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "name", "code"), [(0, "SIGTERM", 75), pytest.param(1, "SIGINT", 130, marks=pytest.mark.long)]
)
def test_the_exit_code_of_the_command_depends_on_the_signal(
    seed: int, name: str, code: int, data: Path, whole: Path, tmp_path: Path
) -> None:
    step = random.Random(seed).randint(1, STEPS - 1)
    script, options = Path(tiny.__file__), tiny.options(tiny.recipe(data, tmp_path, resume="auto"))
    stop = {**os.environ, "STOP_AT": str(step), "STOP_RANK": "0", "STOP_BY": name}
    first = run_python(script, *options, env=stop)
    assert first.returncode == code, first.stderr
    assert f"stopped by {name} at step {step}" in first.stderr
    second = run_python(script, *options)
    assert second.returncode == 0, second.stderr
    assert_same_run(tmp_path, whole)


def test_an_earlier_run_is_not_written_over(data: Path, whole: Path) -> None:
    with pytest.raises(headrace.ConfigError, match=r"last\.pt is there already\. Pass --resume auto"):
        train(tiny.recipe(data, whole))


def test_torchrun_restarting_a_lost_rank_is_resuming(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny.recipe(data, tmp_path, epochs=3))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert train(tiny.recipe(data, tmp_path, epochs=3)).steps == STEPS  # nothing is left to do
    assert [json.loads(line)["kind"] for line in (tmp_path / "log.jsonl").read_text().splitlines()][
        -1
    ] == "end"


def test_a_finished_run_says_so(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny.recipe(data, tmp_path, epochs=2, resume="auto")
    first = train(recipe)
    last = f"finished: 2 epochs, best top-1 {first.best_top1:.2%}: {tmp_path / 'best.pt'}"
    assert capsys.readouterr().err.splitlines()[-1] == last
    assert train(recipe) == first
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith(f"{tmp_path / 'last.pt'} is of a finished run: nothing is left to train")
    assert said[1:] == [last]


def test_another_recipe_is_refused(data: Path, whole: Path) -> None:
    changes: dict[str, dict[str, Any]] = {
        r"with --lr 0\.05, not with --lr 0\.1": {"lr": 0.1},
        "with --batch-size 12, not with --batch-size 1000": {"batch_size": 1000, "weight_decay": 0.1},
        r"without --weight-decay, not with --weight-decay 0\.1": {"weight_decay": 0.1},
    }
    for message, changed in changes.items():
        with pytest.raises(headrace.ConfigError, match=f"was made {message}"):
            train(tiny.recipe(data, whole, resume="auto", **changed))
    with pytest.raises(headrace.ConfigError, match=r"nothing\.pt isn't there"):
        train(tiny.recipe(data, whole, resume=str(whole / "nothing.pt")))
