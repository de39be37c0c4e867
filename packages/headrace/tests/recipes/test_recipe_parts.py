"""Models, checkpoints on the disk, accuracy, precision, and what is said when memory runs out."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch

import headrace
from headrace.recipes import loop, train
from headrace.recipes.loop import counts
from headrace.recipes.parts import builder, datasets
from support import tiny_recipe as tiny
from support.object_stores import free_port


def test_unknown_models_are_refused() -> None:
    with pytest.raises(
        headrace.ConfigError, match=r"--arch resnet17 isn't a model of torchvision \(.*resnet18"
    ):
        builder("resnet17")
    # Its builder would fetch the weights of a backbone.
    with pytest.raises(headrace.ConfigError, match="fcn_resnet50 isn't a classifier of images"):
        builder("fcn_resnet50")


def test_a_failed_write_leaves_the_checkpoint_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    loop.save({"version": 1, "step": 1}, path)
    monkeypatch.setattr(loop.os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        loop.save({"version": 1, "step": 2}, path)
    assert loop.load(path)["step"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["last.pt"]


def test_other_files_are_no_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    path.write_bytes(b"PK\3\4 cut off")
    with pytest.raises(headrace.ConfigError, match=r"last\.pt isn't a checkpoint, or is damaged"):
        loop.load(path)
    torch.save({"weights": torch.ones(1)}, path)
    with pytest.raises(headrace.ConfigError, match="isn't a checkpoint of `headrace train`"):
        loop.load(path)


def test_accuracy_is_counted() -> None:
    logits = torch.tensor([[0.0, 1, 2, 3, 4, 5], [5.0, 4, 3, 2, 1, 0], [0.0, 5, 4, 3, 2, 1]])
    labels = torch.tensor([5, 1, 0])  # the first, the second and the last choice
    top1, top5, loss, images = counts(logits, labels).tolist()
    assert (top1, top5, images) == (1, 2, 3)
    assert loss == pytest.approx(3 * float(torch.nn.functional.cross_entropy(logits, labels)))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_precisions_train(precision: str, data: Path, tmp_path: Path) -> None:
    """fp16 has a scaler, whose state is kept; a run continues with it."""
    recipe = tiny.recipe(data, tmp_path, precision=precision, resume="auto", channels_last=True)
    tiny.before_pass.append(tiny.stop_at(5))
    train(recipe)
    tiny.before_pass.clear()
    state = tiny.checkpoint(tmp_path)
    assert bool(state["scaler"]) == (precision == "fp16")
    assert all(tensor.dtype != torch.bfloat16 for tensor in state["model"].values())
    assert train(recipe).epochs == 3


def test_the_log_has_every_figure(data: Path, tmp_path: Path) -> None:
    train(tiny.recipe(data, tmp_path, epochs=1))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["start", "step", "step", "epoch", "end"]
    figures = {"loss", "lr", "images_per_second", "stall", "seconds_left", "memory_bytes"}
    assert figures <= lines[1].keys()


def test_prometheus_is_served_while_it_trains(data: Path, tmp_path: Path) -> None:
    port, pages = free_port(), []

    def ask(_: int) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
            pages.append(page.read().decode())

    tiny.before_pass.append(ask)
    train(tiny.recipe(data, tmp_path, epochs=1, metrics_port=port))
    assert 'headrace_batches_total{loader="train"} 4.0' in pages[3]
    assert 'headrace_batches_total{loader="val"} 0.0' in pages[3]
    with pytest.raises(urllib.error.URLError, match="refused"):
        ask(5)


def test_a_loss_that_is_no_number_ends_the_run(data: Path, tmp_path: Path) -> None:
    with pytest.raises(headrace.HeadraceError, match=r"The loss is (nan|inf) at step \d+\. A lower --lr"):
        train(tiny.recipe(data, tmp_path, lr=1e30, warmup_epochs=0))


def test_classes_must_agree(data: Path, tmp_path: Path) -> None:
    (tmp_path / "train").symlink_to(data / "train")
    (tmp_path / "val" / "dog").mkdir(parents=True)
    (tmp_path / "val" / "dog" / "a.jpg").write_bytes(next((data / "val").rglob("*.jpg")).read_bytes())
    with pytest.raises(
        headrace.ConfigError, match="train has 3 classes and val 1; only one of them has class0"
    ):
        datasets(tiny.recipe(tmp_path, tmp_path / "out"))
    with pytest.raises(
        headrace.ConfigError, match=r"train isn't there\. The data must be a folder with train"
    ):
        datasets(tiny.recipe(tmp_path / "val", tmp_path / "out"))


def test_packs_are_read_too(data: Path, tmp_path: Path) -> None:
    for part in ("train", "val"):
        headrace.pack(data / part, tmp_path / "packed" / part)
    folders = train(tiny.recipe(data, tmp_path / "of folders", epochs=1))
    packs = train(tiny.recipe(tmp_path / "packed", tmp_path / "of packs", epochs=1))
    assert folders == packs
    states = [tiny.checkpoint(tmp_path / name)["model"] for name in ("of folders", "of packs")]
    assert tiny.difference(*states) == 0


@pytest.mark.parametrize(
    "failure",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
        MemoryError("no more memory"),
    ],
    ids=["device", "cpu", "python"],
)
def test_running_out_of_memory_gives_advice(failure: BaseException, data: Path, tmp_path: Path) -> None:
    def fail(number: int) -> None:
        raise failure

    tiny.before_pass.append(fail)
    with pytest.raises(headrace.HeadraceError, match="Out of memory on cpu") as caught:
        train(tiny.recipe(data, tmp_path))
    for part in (str(failure), "--precision bf16", "--accumulate 2", "a smaller --batch-size"):
        assert part in str(caught.value)


@pytest.mark.long
def test_the_command_gives_advice_when_the_cpus_memory_is_short(data: Path, tmp_path: Path) -> None:
    """A real failure to allocate: 40 GB of activations where 8 GB of addresses are allowed."""
    recipe = tiny.recipe(data, tmp_path, arch="resnet18", size=4096, val_resize=4096, ema=0.0)
    code = "from headrace.cli import main; main()"
    limit = 8 << 30
    done = subprocess.run(
        [sys.executable, "-c", code, *tiny.options(recipe)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 1, done.stderr
    assert "Out of memory on cpu" in done.stderr
    assert "Traceback" not in done.stderr


def test_models_of_timm(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("timm", reason="timm isn't installed")
    recipe = tiny.recipe(data, tmp_path, arch="timm/test_resnet", epochs=1)
    assert train(recipe).epochs == 1
    with pytest.raises(headrace.ConfigError, match="--arch timm/resnet17 isn't a model of timm"):
        builder("timm/resnet17")


def test_a_missing_timm_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(headrace.ConfigError, match="needs timm: pip install timm"):
        builder("timm/resnet50")
