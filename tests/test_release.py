"""`tools/release.sh` leaves a tree that `make tag-check` accepts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHANGED = ("packages/*/pyproject.toml", "packages/*/changes/*.md", "CITATION.cff", "CHANGELOG.md", "Makefile",
           "tools/release.sh", "deploy/kubernetes/*/kustomization.yaml")  # fmt: skip


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder of the files that a release changes."""
    for path in (path for pattern in CHANGED for path in ROOT.glob(pattern)):
        place = tmp_path / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)
    return tmp_path


def test_a_release_passes_the_check_of_its_tag(copy: Path) -> None:
    def run(*command: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            command, cwd=copy, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )

    assert run("tools/release.sh", "next").returncode == 2
    assert run("make", "tag-check", "TAG=v9.8.7").returncode == 2
    done = run("tools/release.sh", "9.8.7")
    assert done.returncode == 0, done.stderr
    checked = run("make", "tag-check", "TAG=v9.8.7")
    assert checked.returncode == 0, checked.stderr
    changelog = (copy / "CHANGELOG.md").read_text()
    assert changelog.index("\n## 9.8.7 (") < changelog.index("\n## 9.8.7 of the doctor (")
    assert "newTag: 9.8.7" in (copy / "deploy" / "kubernetes" / "train" / "kustomization.yaml").read_text()
    loader = (ROOT / "packages" / "headrace" / "pyproject.toml").read_text().splitlines()
    assert len(set(loader) - set((copy / "packages/headrace/pyproject.toml").read_text().splitlines())) == 1
