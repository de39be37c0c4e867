"""The recipe on an accelerator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import headrace
from headrace.recipes import train
from support import tiny_recipe as tiny
from support.object_stores import free_port
from support.python import start_python

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_stopped_run_resumes_to_the_same_bits(
    precision: str, gpu: torch.device, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    changes: dict[str, Any] = {"precision": precision, "device": str(gpu), "resume": "auto"}
    changes |= {"channels_last": True, "accumulate": 2}
    whole, cut = (tiny.recipe(data, tmp_path / name, **changes) for name in ("whole", "cut"))
    train(whole)
    tiny.before_pass.append(tiny.stop_at(9))
    assert train(cut).stopped_by == "SIGTERM"
    tiny.before_pass.clear()
    train(cut)
    states = [tiny.checkpoint(tmp_path / name) for name in ("whole", "cut")]
    for part in ("model", "average"):
        assert tiny.difference(states[0][part], states[1][part]) == 0
    assert states[0]["scaler"] == states[1]["scaler"]


@pytest.mark.slow
@pytest.mark.long
# The ranks' sums are in another order; weights move by more than 1e-2.
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 2e-3)])
def test_ranks_train_as_one(
    precision: str, tolerance: float, gpu: torch.device, data: Path, tmp_path: Path
) -> None:
    if torch.accelerator.device_count() < 2:
        pytest.skip("two ranks need two devices")
    changes: dict[str, Any] = {"arch": "tiny_groupnorm", "deterministic": False, "precision": precision}
    alone, ours = (
        tiny.recipe(data, tmp_path / name, **changes, device=device)
        for name, device in (("alone", str(gpu)), ("ranks", None))
    )
    train(alone)
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        start_python(Path(tiny.__file__), *tiny.options(ours), env={**common, "RANK": n, "LOCAL_RANK": n})
        for n in ("0", "1")
    ]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    states = [tiny.checkpoint(recipe.out) for recipe in (alone, ours)]
    for part in ("model", "average"):
        assert tiny.difference(states[0][part], states[1][part]) < tolerance


def test_checkpoints_of_the_device_are_loaded_on_the_cpu(
    gpu: torch.device, data: Path, tmp_path: Path
) -> None:
    train(tiny.recipe(data, tmp_path, device=str(gpu), epochs=3, deterministic=False))
    resumed = train(tiny.recipe(data, tmp_path, epochs=3, resume="auto"))
    assert resumed.epochs == 3


def test_running_out_of_device_memory_gives_advice(gpu: torch.device, data: Path, tmp_path: Path) -> None:
    if gpu.type != "cuda":
        pytest.skip("only CUDA's memory can be limited")
    recipe = tiny.recipe(
        data, tmp_path, arch="resnet18", size=2048, val_resize=2048, device=str(gpu), ema=0.0
    )
    torch.cuda.set_per_process_memory_fraction(0.02, gpu)
    try:
        with pytest.raises(headrace.HeadraceError, match=r"Out of memory on cuda:\d"):
            train(recipe)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, gpu)
