"""The experiments of benchmarks/ that the documentation quotes still run, on little."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from support.experiment import experiment


def test_overlap_reports_the_floor_torch_and_headrace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overlap = experiment("overlap")
    monkeypatch.setattr(overlap, "TORCH_WORKERS", (2,))
    out = tmp_path / "overlap.json"
    monkeypatch.setattr(
        sys, "argv", ["overlap.py", "--items", "16", "--batch-size", "8", "--rounds", "1", "--json", str(out)]
    )
    overlap.main()
    assert "times as fast as torch's best" in capsys.readouterr().out
    names = [row["name"] for row in json.loads(out.read_text())["rows"]]
    assert names[:3] == ["floor (batches in memory)", "torch, num_workers=0", "torch, num_workers=2"]
    assert [name.split(",")[0] for name in names[3:]] == ["headrace", "headrace"]


def test_floor_compares_both_loaders_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    floor = experiment("floor")
    out = tmp_path / "floor.json"
    name = "numbers, 20 batches, new workers"
    monkeypatch.setattr(sys, "argv", ["floor.py", "--short", "--rows", name, "--output", str(out)])
    floor.main()
    assert "later epoch: geometric mean" in capsys.readouterr().out
    row = json.loads(out.read_text())["rows"][name]
    assert all(len(row[loader][figure]) == 3 for loader in floor.LOADERS for figure in floor.FIGURES)
    assert len(floor.ROWS) >= 25


def test_floor_times_no_loader_that_gives_other_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    floor = experiment("floor")
    row = floor.Row("drifting", lambda _: Drifting(), workers=0)
    with pytest.raises(ValueError, match="the batches of the two loaders differ"):
        floor.check_equal(Drifting(), row)


def test_floor_compares_calls_that_give_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    floor = experiment("floor")
    found = floor.compare_calls(floor.Call("sums", lambda _: (sum, math.fsum, [[1.0, 2.0], [3.0]])), 1)
    floor.show({"sums": found})
    assert "sums" in capsys.readouterr().out
    assert [len(found[name]["later_epoch"]) for name in floor.LOADERS] == [floor.CALL_ROUNDS] * 2
    with pytest.raises(ValueError, match="the two functions give different values"):
        floor.compare_calls(floor.Call("unlike", lambda _: (sum, max, [[1, 2]])), 1)


class Drifting(Dataset[int]):
    """Another number every time."""

    asked = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.asked += 1
        return self.asked


def test_amp_reports_each_precision_or_why_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "amp.json"
    options = [
        "--arch",
        "squeezenet1_1",
        "--batch-size",
        "8",
        "--size",
        "64",
        "--steps",
        "1",
        "--device",
        "cpu",
    ]
    monkeypatch.setattr(sys, "argv", ["amp.py", *options, "--json", str(out)])
    experiment("amp").main()
    assert "These figures say nothing about a GPU" in capsys.readouterr().out
    rows = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows] == ["fp32", "bf16", "fp16"]
    assert all((len(row["seconds"]) == 1) != bool(row["missing"]) for row in rows)
    fp32, bf16 = rows[:2]
    assert 0.4 < bf16["activation_bytes"] / fp32["activation_bytes"] < 0.9
    assert bf16["loss"] == pytest.approx(fp32["loss"], abs=0.2)


def test_amp_counts_the_bytes_that_autograd_keeps() -> None:
    """A linear layer keeps its input, and nothing else that isn't a parameter."""
    layer, x = torch.nn.Linear(32, 8), torch.randn(4, 32)
    with experiment("amp").saved_bytes() as sizes:
        layer(x).sum()
    assert sum(sizes.values()) == 4 * 32 * 4


@pytest.mark.gpu
def test_amp_reports_the_allocators_peak_on_a_gpu(gpu: torch.device) -> None:
    if not hasattr(torch.get_device_module(gpu), "max_memory_allocated"):
        pytest.skip("its allocator reports no peak")
    fp32, bf16, _ = experiment("amp").run("resnet18", 32, 64, 3, gpu)
    assert bf16.peak_bytes < fp32.peak_bytes
