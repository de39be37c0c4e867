"""What a user may get wrong is reported soon, without a trace, and in the command's own words."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.recipes import Recipe, parts, train
from headrace.recipes.parts import lr_factor
from support import tiny_recipe as tiny


@pytest.fixture
def changed(data: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return shutil.copytree(data, tmp_path / "changed")


def command(*arguments: object) -> Any:
    done = CliRunner().invoke(app, ["train", *map(str, arguments), "--device", "cpu"])
    assert isinstance(done.exception, SystemExit), done.exception
    return done


def test_a_misspelt_model_is_reported_before_data_and_batch_are_checked(tmp_path: Path) -> None:
    done = command(tmp_path / "nothing", "--arch", "resnet5O", "--batch-size", 13, "--accumulate", 5)
    assert done.exit_code == 2
    assert done.output.startswith("--arch resnet5O isn't a model of torchvision (")
    assert "resnet50" in done.output


def test_a_batch_larger_than_the_dataset_is_refused(data: Path, tmp_path: Path) -> None:
    done = command(data, "--out", tmp_path / "out", "--arch", "tiny_groupnorm")
    assert done.exit_code == 2
    assert f"--batch-size (256) is more than the 50 images of {data / 'train'}" in done.output


@pytest.mark.parametrize("part", ["train", "val"])
def test_an_empty_class_folder_is_named(part: str, changed: Path, tmp_path: Path) -> None:
    (changed / part / "fox").mkdir()
    (changed / part / "fox" / "notes.txt").write_text("none yet")
    (changed / part / "fox" / "deeper").mkdir()
    done = command(changed, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "found no valid file for the classes fox" in done.output.lower()
    assert f"headrace doctor data {changed}" in done.output


def test_images_without_class_folders_are_refused(data: Path, tmp_path: Path) -> None:
    """val as ILSVRC2012's archive holds it."""
    (tmp_path / "train").symlink_to(data / "train")
    (tmp_path / "val").mkdir()
    shutil.copy(next((data / "val").rglob("*.jpg")), tmp_path / "val")
    with pytest.raises(headrace.ConfigError, match=r"find any class folder in .*val"):
        parts.datasets(tiny.recipe(tmp_path, tmp_path / "out"))


def test_an_out_that_is_a_file(data: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    done = command(data, "--out", tmp_path / "out", "--arch", "tiny_groupnorm", "--batch-size", 12)
    assert done.exit_code == 2
    assert "File exists" in done.output
    assert str(tmp_path / "out") in done.output


def test_a_resume_that_is_a_folder(data: Path, tmp_path: Path) -> None:
    done = command(data, "--out", tmp_path / "out", "--resume", tmp_path)
    assert done.exit_code == 2
    assert f"--resume: {tmp_path} isn't a checkpoint" in done.output


@pytest.mark.parametrize("name", ["nope", "cuda:x"])
def test_an_unknown_device_is_refused(name: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(
        headrace.ConfigError, match=f"--device {name} can't be used by local rank 0: .*cpu, cuda and"
    ):
        train(tiny.recipe(data, tmp_path, device=name))


def test_a_device_of_another_kind_than_the_machines_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch itself would set the index of the GPU that there is, and fail later."""
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr("torch.accelerator.set_device_index", lambda _: None)
    with pytest.raises(headrace.ConfigError, match=r"--device xpu can't be used .* is cuda"):
        train(tiny.recipe(data, tmp_path, device="xpu"))


def test_side_branches_are_left_out() -> None:
    """Their models give one output, as others do."""
    import torch

    from headrace.recipes.parts import builder

    model = builder("googlenet")(10).train()
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 10)


def recipe_of(**values: Any) -> Recipe:
    return Recipe(data=Path("data"), out=Path("out"), **values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": 0}, r"--epochs \(0\) must be 1 or more"),
        ({"warmup_epochs": -1}, r"--warmup-epochs \(-1\) must be 0 or more"),
        (
            {"warmup_epochs": 5, "epochs": 5},
            r"--warmup-epochs \(5\) must be 0 or more, and less than --epochs \(5\)",
        ),
        ({"weight_decay": -0.1}, r"--weight-decay \(-0\.1\) must be 0 or more"),
        ({"workers": -1}, r"--workers \(-1\) must be 0 or more"),
        ({"precision": "fp8"}, r"--precision \(fp8\) must be one of fp32, bf16, fp16"),
        ({"optimizer": "adam"}, r"--optimizer \(adam\) must be sgd or adamw"),
        ({"lr": 0.0}, r"--lr \(0\.0\) must be above 0"),
        ({"ema": 1.0}, r"--ema \(1\.0\) must be in \[0, 1\)"),
        ({"val_resize": 200}, r"--val-resize \(200\) must be at least --size \(224\)"),
    ],
)
def test_invalid_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(headrace.ConfigError, match=message):
        recipe_of(**values)


def test_learning_rates_follow_the_batch() -> None:
    assert recipe_of(batch_size=256).peak_lr == pytest.approx(0.1)
    assert recipe_of(batch_size=1024).peak_lr == pytest.approx(0.4)
    assert recipe_of(batch_size=512, optimizer="adamw").peak_lr == pytest.approx(5e-4)
    assert recipe_of(lr=0.3).peak_lr == 0.3


def test_a_short_run_has_a_short_warm_up() -> None:
    assert [recipe_of(epochs=epochs).warmup for epochs in (1, 4, 10, 90)] == [0.5, 2, 5, 5]
    assert recipe_of(epochs=4, warmup_epochs=0).warmup == 0


def test_parts_make_up_the_batch() -> None:
    assert recipe_of(batch_size=48, accumulate=3).part_size(world_size=4) == 4
    for ranks, accumulate in ((5, 1), (1, 5)):
        message = rf"--batch-size \(48\) must divide by ranks × --accumulate \({ranks} × {accumulate}\)"
        with pytest.raises(headrace.ConfigError, match=message):
            recipe_of(batch_size=48, accumulate=accumulate).part_size(world_size=ranks)


def test_the_rate_rises_and_falls() -> None:
    factors = [lr_factor(step, warmup=4, total=20) for step in range(21)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert factors[12] == pytest.approx(0.5)
    assert factors[20] == pytest.approx(0.0)
