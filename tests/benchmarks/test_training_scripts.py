"""Public training scripts print under `headrace run` what they print with torch's loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.experiment import experiment
from support.jpegs import image_folder

scripts = experiment("training_scripts")
# A script whose losses depend on Python's draws alone, which is quick.
QUICK = "clip_csv"
LONG = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(4 * scripts.SECONDS)]
# Two of Ray's clusters that start at once on a few cores reach its limit of 30 s, which can't be changed.
RAY = [*LONG, pytest.mark.xdist_group("ray")]
CASES = [
    pytest.param(
        script,
        ranks,
        id=f"{script.name} {script.arguments} {ranks}",
        marks=RAY if "ray" in script.needs else LONG,
    )
    for script in scripts.SCRIPTS
    for ranks in ((1, 2) if script.ranks else (1,))
]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of the scripts, made of small noise images in ten classes."""
    root = tmp_path_factory.mktemp("data")
    image_folder(root / "images", 100, classes=10, side=96)
    scripts.prepare(root / "prepared", root / "images", 80)
    return root / "prepared"


@pytest.mark.parametrize(("script", "ranks"), CASES)
def test_a_script_prints_and_ends_as_with_torchs_loader(
    script: Any, ranks: int, data: Path, tmp_path: Path
) -> None:
    if script.missing:
        pytest.skip(f"{', '.join(script.missing)} isn't installed")
    assert scripts.differences(script, data, tmp_path, ranks) == []


def test_a_quick_script_prints_and_ends_as_with_torchs_loader(data: Path, tmp_path: Path) -> None:
    (script,) = (each for each in scripts.SCRIPTS if each.name == QUICK)
    assert scripts.differences(script, data, tmp_path) == []


def test_every_script_is_run() -> None:
    names = {path.stem for path in scripts.FOLDER.glob("*.py")}
    assert names == {script.name for script in scripts.SCRIPTS}
