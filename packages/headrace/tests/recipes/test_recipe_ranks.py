"""Several ranks train as one does. By torchrun and gloo, as on any machine without GPUs.

The model normalizes each image by itself (GroupNorm): BatchNorm's statistics are of a rank's own images,
so that they, and the weights, depend on how many share a batch. Sums of floats in another order differ in the
last bits: weights are compared with a tolerance of 1e-5; they move by more than 1e-2.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.recipes import Recipe, train
from support import tiny_recipe as tiny

TOLERANCE = 1e-5
# Without it ranks that are started again find the addresses of those before (pytorch/pytorch#135712).
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    train(groupnorm(data, out))
    return out


def groupnorm(data: Path, out: Path, **changes: Any) -> Recipe:
    return tiny.recipe(data, out, arch="tiny_groupnorm", deterministic=False, **changes)


def run_ranks(
    count: int, recipe: Recipe, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={count}",
        *options,
    ]
    path = os.pathsep.join(sys.path)
    return subprocess.run(
        [*command, str(Path(tiny.__file__)), *tiny.options(recipe)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def evaluations(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "epoch"]


def assert_same_training(out: Path, alone: Path) -> None:
    ours, theirs = tiny.checkpoint(out), tiny.checkpoint(alone)
    assert ours["step"] == theirs["step"]
    assert ours["loader"] == theirs["loader"]
    for part in ("model", "average"):
        assert tiny.difference(ours[part], theirs[part]) < TOLERANCE
    for mine, other in zip(evaluations(out)[-1:], evaluations(alone)[-1:], strict=True):
        assert mine["images"] == other["images"] == 25  # odd: no rank's share is padded
        assert (mine["top1"], mine["top5"]) == (other["top1"], other["top5"])
        assert mine["loss"] == pytest.approx(other["loss"], abs=TOLERANCE)


def test_parts_of_a_batch_are_the_batch(data: Path, alone: Path, tmp_path: Path) -> None:
    train(groupnorm(data, tmp_path, accumulate=4))
    assert_same_training(tmp_path, alone)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("count", "accumulate"), [(2, 1), (3, 2)])
def test_ranks_train_as_one(count: int, accumulate: int, data: Path, alone: Path, tmp_path: Path) -> None:
    done = run_ranks(count, groupnorm(data, tmp_path, accumulate=accumulate))
    assert done.returncode == 0, done.stderr
    assert_same_training(tmp_path, alone)


@pytest.mark.slow
@pytest.mark.long
def test_a_signal_to_one_rank_stops_all_and_another_number_resumes(
    data: Path, alone: Path, tmp_path: Path
) -> None:
    recipe = groupnorm(data, tmp_path, resume="auto")
    stopped = run_ranks(2, recipe, STOP_AT="6", STOP_RANK="1")
    assert stopped.returncode != 0  # torchrun's own code, whatever its workers' was: hence the file
    assert (tmp_path / "preempted").read_text() in ("6\n", "7\n"), stopped.stderr
    assert tiny.checkpoint(tmp_path)["step"] in (6, 7)
    resumed = run_ranks(3, recipe)
    assert resumed.returncode == 0, resumed.stderr
    assert not (tmp_path / "preempted").exists()
    assert_same_training(tmp_path, alone)


@pytest.mark.slow
@pytest.mark.long
def test_torchrun_restarts_a_lost_rank(data: Path, alone: Path, tmp_path: Path) -> None:
    recipe = groupnorm(data, tmp_path, checkpoint_every=2)
    done = run_ranks(2, recipe, "--max-restarts=1", DIE_AT="7", DIE_RANK="1", **FRESH_STORE)
    assert done.returncode == 0, done.stderr
    starts = [line for line in (tmp_path / "log.jsonl").read_text().splitlines() if '"start"' in line]
    assert [json.loads(line)["step"] for line in starts] == [0, 6]
    assert_same_training(tmp_path, alone)
