"""What a user may get wrong is told without a trace, soon, and by the command's own words."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import headrace
from headrace.cli import app
from headrace.recipes import parts, train
from support import tiny_recipe as tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return shutil.copytree(folder, tmp_path / "changed")


def command(*arguments: object) -> Any:
    done = CliRunner().invoke(app, ["train", *map(str, arguments), "--device", "cpu"])
    assert isinstance(done.exception, SystemExit), done.exception
    return done


def test_a_misspelt_model_is_reported_before_data_and_batch_are_checked(tmp_path: Path) -> None:
    done = command(tmp_path / "nothing", "--arch", "resnet5O", "--batch-size", 13, "--accumulate", 5)
    assert done.exit_code == 2
    assert done.output.startswith("--arch resnet5O isn't a model of torchvision (")
    assert "resnet50" in done.output


def test_another_batch_size_on_resuming_is_reported(folder: Path, tmp_path: Path) -> None:
    recipe = tiny.recipe(folder, tmp_path, epochs=1)
    train(recipe)
    changed = tiny.recipe(folder, tmp_path, epochs=1, resume="auto", batch_size=1000, weight_decay=0.1)
    with pytest.raises(
        headrace.ConfigError, match="was made with --batch-size 12, not with --batch-size 1000"
    ):
        train(changed)
    changed = tiny.recipe(folder, tmp_path, epochs=1, resume="auto", weight_decay=0.1)
    with pytest.raises(
        headrace.ConfigError, match=r"was made without --weight-decay, not with --weight-decay 0\.1"
    ):
        train(changed)


def test_a_batch_larger_than_the_dataset_is_refused(folder: Path, tmp_path: Path) -> None:
    done = command(folder, "--out", tmp_path / "out", "--arch", "tiny_groupnorm")
    assert done.exit_code == 2
    assert f"--batch-size (256) is more than the 50 images of {folder / 'train'}" in done.output


@pytest.mark.parametrize("part", ["train", "val"])
def test_an_empty_class_folder_is_named(part: str, changed: Path, tmp_path: Path) -> None:
    (changed / part / "fox").mkdir()
    (changed / part / "fox" / "notes.txt").write_text("none yet")
    (changed / part / "fox" / "deeper").mkdir()
    done = command(changed, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "found no valid file for the classes fox" in done.output.lower()
    assert f"headrace doctor data {changed}" in done.output


def test_images_without_class_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    """val as ILSVRC2012's archive holds it."""
    (tmp_path / "train").symlink_to(folder / "train")
    (tmp_path / "val").mkdir()
    shutil.copy(next((folder / "val").rglob("*.jpg")), tmp_path / "val")
    with pytest.raises(headrace.ConfigError, match=r"find any class folder in .*val"):
        parts.datasets(tiny.recipe(tmp_path, tmp_path / "out"))


def test_a_missing_folder(tmp_path: Path) -> None:
    done = command(tmp_path / "nothing")
    assert done.exit_code == 2
    assert (
        f"{tmp_path / 'nothing' / 'train'} isn't there. The data must be a folder with train" in done.output
    )


def test_an_out_that_is_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    done = command(folder, "--out", tmp_path / "out", "--arch", "tiny_groupnorm", "--batch-size", 12)
    assert done.exit_code == 2
    assert "File exists" in done.output
    assert str(tmp_path / "out") in done.output


def test_a_resume_that_is_a_folder(folder: Path, tmp_path: Path) -> None:
    done = command(folder, "--out", tmp_path / "out", "--resume", tmp_path)
    assert done.exit_code == 2
    assert f"--resume: {tmp_path} isn't a checkpoint" in done.output


@pytest.mark.parametrize("name", ["nope", "cuda:x"])
def test_an_unknown_device_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        headrace.ConfigError, match=f"--device {name} can't be used by local rank 0: .*cpu, cuda and"
    ):
        train(tiny.recipe(folder, tmp_path, device=name))


def test_a_device_of_another_kind_than_the_machines_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch itself would set the index of the GPU that there is, and fail later."""
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr("torch.accelerator.set_device_index", lambda _: None)
    with pytest.raises(headrace.ConfigError, match=r"--device xpu can't be used .* is cuda"):
        train(tiny.recipe(folder, tmp_path, device="xpu"))


def test_side_branches_are_left_out() -> None:
    """Their models give one output, as others do."""
    import torch

    from headrace.recipes.parts import builder

    model = builder("googlenet")(10).train()
    assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 10)
