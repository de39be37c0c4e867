"""Training libraries see the same samples from `headrace.DataLoader` as from torch's, and print the same."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.jpegs import image_folder

SCRIPT = Path(__file__).with_name("scenarios.py")
NAMES = re.findall(r"^@scenario\ndef (\w+)", SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
PACKAGES = {"hugging": "transformers"}
SECONDS = 300
# What differs from run to run: places, times, addresses in memory, process numbers.
VARYING = re.compile(r"0x[0-9a-f]+|/\S+?\.py:\d+|\d+(\.\d+)?(it/s|s\b)|pid=\d+|tmp\w+")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("images")
    image_folder(place, 24, side=48)
    return place


def run(name: str, loader: str, folder: Path, cwd: Path, ranks: int = 1) -> tuple[list[Any], list[str]]:
    """What the loops of all ranks saw, and the lines that they printed on standard error."""
    cwd.mkdir()
    processes = []
    for rank in range(ranks):
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "MEETING": str(cwd / "meeting"),
        }
        if ranks > 1:
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        command = [sys.executable, str(SCRIPT), name, loader, str(folder)]
        processes.append(
            subprocess.Popen(
                command, env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    seen, lines = [], []
    for process in processes:
        out, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, f"{loader}: {errors}"
        seen.append(json.loads(out.splitlines()[-1]))
        lines += [VARYING.sub("…", line) for line in errors.splitlines()]
    return seen, lines


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("name", NAMES)
def test_training_code_sees_and_prints_what_it_does_with_torchs_loader(
    name: str, folder: Path, tmp_path: Path
) -> None:
    library = name.split("_")[0]
    package = PACKAGES.get(library, library)
    if library not in ("reference", "yolo") and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} isn't installed")
    ranks = 2 if name.endswith("two_processes") else 1
    theirs, their_lines = run(name, "torch", folder, tmp_path / "torch", ranks)
    ours, our_lines = run(name, "headrace", folder, tmp_path / "headrace", ranks)
    assert ours == theirs
    assert [line for line in our_lines if line not in their_lines] == []
