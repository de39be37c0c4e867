"""headrace bench amp."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from headrace.bench import amp
from headrace.cli import app


@pytest.fixture(scope="module")
def result() -> Iterator[amp.Amp]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield amp.run("squeezenet1_1", batch_size=8, size=64, steps=2, device="cpu")
    torch.set_num_threads(threads)


def test_every_precision_is_measured_or_says_why_not(result: amp.Amp) -> None:
    assert [row.name for row in result.rows] == ["fp32", "bf16", "fp16"]
    assert all((len(row.seconds) == 2) != bool(row.missing) for row in result.rows)
    texts = " ".join(amp.notes(result))
    assert all(row.missing in texts for row in result.rows)


def test_bf16_keeps_fewer_bytes_for_the_backward_pass(result: amp.Amp) -> None:
    """SqueezeNet's weights are few, so that their copies don't hide it."""
    fp32, bf16 = result.rows[:2]
    assert 0.4 < result.memory(bf16) / result.memory(fp32) < 0.9
    assert bf16.loss == pytest.approx(fp32.loss, abs=0.2)


def test_activations_are_counted_by_their_bytes() -> None:
    """A linear layer keeps its input, and nothing else that isn't a parameter."""
    layer, x, counted = torch.nn.Linear(32, 8), torch.randn(4, 32), []
    with amp._kept(counted):
        layer(x).sum()
    assert counted == [4 * 32 * 4]


def test_the_command_writes_its_figures(tmp_path: Path) -> None:
    out = tmp_path / "amp.json"
    options = ["--arch", "squeezenet1_1", "--batch-size", "2", "--size", "32", "--steps", "1"]
    done = CliRunner().invoke(app, ["bench", "amp", *options, "--device", "cpu", "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert "It says nothing of a GPU" in done.output
    assert json.loads(out.read_text())["arch"] == "squeezenet1_1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--arch", "nope"], "headrace bench amp: --arch nope isn't a model of torchvision"),
        (["--device", "nope"], "headrace bench amp: --device nope isn't a device"),
        (
            ["--arch", "squeezenet1_1", "--batch-size", "10000000", "--size", "4096", "--device", "cpu"],
            "--batch-size 10000000: so many pictures of 4096×4096 in fp32 don't fit in the memory of cpu",
        ),
        (["--json", "/nowhere/amp.json"], "No such file or directory: '/nowhere/amp.json'"),
    ],
)
def test_what_cannot_be_had_is_refused(options: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["bench", "amp", *options])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.gpu
def test_on_a_gpu_the_allocators_peak_is_given(gpu: torch.device) -> None:
    result = amp.run("resnet18", batch_size=32, size=64, steps=3, device=str(gpu))
    fp32, bf16 = result.rows[:2]
    assert fp32.peak_bytes is not None
    assert bf16.peak_bytes is not None
    assert bf16.peak_bytes < fp32.peak_bytes
