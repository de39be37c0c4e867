"""The workflows of the hosted CI call targets of the Makefile that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def commands(path: Path) -> list[str]:
    """The commands of the steps, with the values of each matrix filled in."""
    found = []
    for job in jobs(path).values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job.get("steps", []):
            run = step.get("run", "")
            values = matrix.get("target", [""])
            found += [run.replace("${{ matrix.target }}", value) for value in values]
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_step_calls_a_target_that_exists(path: Path) -> None:
    for command in filter(None, commands(path)):
        assert re.search(r"\bmake |^(sudo apt-get|brew) ", command), f"{command}: make it a target"
        for target in re.findall(r"\bmake ([a-z-]+)", command):
            assert target in TARGETS, command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_only_publishing_jobs_may_write(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    for name, job in jobs(path).items():
        assert "permissions" not in job or name in ("publish", "deploy")


def test_the_matrix_covers_the_supported_versions() -> None:
    matrix = jobs(ROOT / ".github" / "workflows" / "ci.yml")["test"]["strategy"]["matrix"]
    project = (ROOT / "packages" / "headrace" / "pyproject.toml").read_text()
    oldest = re.search(r'^requires-python = ">=([\d.]+)"', project, re.MULTILINE)
    assert oldest is not None
    assert matrix["python"][0] == oldest[1]
    arguments = " ".join(row.get("arguments", "") for row in matrix["include"])
    for name in ("torch", "torchvision", "pillow"):
        lowest = re.search(rf'"{name}>=([\d.]+)"', project)
        assert lowest is not None
        assert f"{name.upper()}={lowest[1]}." in arguments
