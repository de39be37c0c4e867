"""Training libraries see the same samples from `headrace.DataLoader` as from torch's, and print the same."""

from __future__ import annotations

import importlib.util
import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.jpegs import image_folder
from support.training_scripts import SECONDS, run, steady

SCRIPT = Path(__file__).with_name("scenarios.py")
NAMES = re.findall(r"^@scenario\ndef (\w+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
PACKAGES = {"hugging": "transformers"}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("images")
    image_folder(place, 24, side=48)
    return place


def seen(name: str, loader: str, folder: Path, cwd: Path, ranks: int = 1) -> tuple[list[Any], Any, list[str]]:
    """What the loops of all ranks saw, and the lines that they printed on both streams."""
    environment = {"MEETING": str(cwd / "meeting"), "YOLO_CONFIG_DIR": str(cwd)}
    out, errors = run([str(SCRIPT), name, loader, str(folder)], cwd, environment, ranks)
    found = [json.loads(lines.pop()) for lines in out]
    return found, [steady(lines, cwd) for lines in out], steady(errors, cwd)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("name", NAMES)
def test_training_code_sees_and_prints_what_it_does_with_torchs_loader(
    name: str, folder: Path, tmp_path: Path
) -> None:
    library = name.split("_")[0]
    package = PACKAGES.get(library, library)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} isn't installed")
    ranks = 2 if name.endswith("two_processes") else 1
    with ThreadPoolExecutor() as threads:
        runs = threads.map(
            lambda loader: seen(name, loader, folder, tmp_path / loader, ranks), ("torch", "headrace")
        )
    (theirs, their_out, their_errors), (ours, our_out, our_errors) = runs
    assert ours == theirs
    assert our_out == their_out
    assert [line for line in our_errors if line not in their_errors] == []
