"""`tools/release.sh` leaves a tree that `make tag-check` accepts."""

from __future__ import annotations

import importlib.util
import os
import re
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


def test_checks_of_a_release_continue_and_tell_what_they_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("release_check", ROOT / "tools" / "release-check.py")
    assert spec is not None
    assert spec.loader is not None
    checks = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "release_check", checks)
    spec.loader.exec_module(checks)
    output = r"SKIPPED [3] tests/test_a.py:1: no accelerator\nlint: the format is NOT checked\n= 5 passed =\n"
    ready = tmp_path / "ready"
    fine = checks.Check("fine", f"printf '{output}'", ("native",))
    broken = checks.Check("broken", f"echo $PWD/log; test -e {ready}", (":!docs",))
    absent = checks.Check("absent", "true", needs=("no-such-program",))
    tested = checks.Check("tested", 'echo "ran: $TESTS"; echo = 5 passed', ("tests", "code.py"))
    monkeypatch.setattr(checks, "ROOT", tmp_path)
    monkeypatch.setattr(checks, "CHECKS", (fine, broken, absent, tested, checks.Check("later", "true")))

    def git(*command: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        done = subprocess.run(
            ["git", *identity, *command], cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "First")

    def run(*names: str) -> tuple[int, list[str], str]:
        record = tmp_path / "record.json"
        arguments = ["--folder", str(tmp_path / "work"), "--record", str(record), "--only", *names]
        monkeypatch.setattr(sys, "argv", ["release-check.py", *arguments])
        code = checks.main()
        ended = re.findall(r"  (\w+): (?:passed|failed|not run)$", capsys.readouterr().out, re.MULTILINE)
        return code, ended, record.with_suffix(".md").read_text()

    code, ended, page = run("fine", "broken", "absent")
    assert (code, ended) == (1, ["fine", "broken", "absent"])
    rows = {line.split(" | ")[0][2:]: line.split(" | ") for line in page.splitlines() if line[:2] == "| "}
    assert [rows[name][2] for name in ("fine", "broken", "absent", "later")] == [
        "passed", "failed", "not run", "not run",
    ]  # fmt: skip
    assert "5 passed" in rows["fine"][-1]
    assert "no-such-program not installed" in rows["absent"][-1]
    assert "```text\n3 skipped: no accelerator\nlint: the format is NOT checked\n```" in page
    assert "```text\nlog\n```" in page  # without the folder of the checkout
    ready.touch()
    code, ended, page = run("fine", "broken")
    assert (code, ended) == (0, ["broken"])
    assert "| broken |" in page
    assert "| failed |" not in page

    def commit(file: str, text: str = "changed") -> None:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
        git("add", file)
        git("commit", "-q", "-m", file)

    commit("docs/page.md")
    code, ended, page = run("fine", "broken")
    assert (code, ended) == (0, [])
    assert "# Checks of commit" in page
    commit("code.py")
    assert run("fine", "broken")[1] == ["broken"]
    commit("native/code.cpp")
    assert run("fine", "broken")[1] == ["fine", "broken"]

    def ran() -> list[str]:
        (log,) = (tmp_path / "work").glob(f"{git('rev-parse', '--short=12', 'HEAD')}/tested.log")
        return re.findall("ran: (.*)", log.read_text())

    run("tested")
    assert ran() == [""]
    commit("tests/test_b.py")
    _, ended, page = run("tested")
    assert (ended, ran()) == (["tested"], ["tests/test_b.py"])
    assert re.search(r"\| tests/test_b\.py: 5 passed; on \w{12}: 5 passed \|", page)
    commit("tests/helpers.py")
    run("tested")
    assert ran() == [""]
    commit("tests/test_c.py", "from exact.test_b import read")
    run("tested")
    assert ran() == ["tests/test_c.py"]
    commit("tests/test_b.py", "read = open")  # which another test imports
    run("tested")
    assert ran() == [""]

    def fails(name: str, summary: str) -> None:
        failing = f'echo "ran: $TESTS"; echo "FAILED {name}::test[x] - E"; echo "= {summary} ="; exit 1'
        monkeypatch.setattr(checks, "CHECKS", (checks.Check("tested", failing, tested.inputs),))
        assert run("tested")[:2] == (1, ["tested"])
        monkeypatch.setattr(checks, "CHECKS", (tested,))

    commit("code.py", "more")
    fails("tests/test_b.py", "1 failed, 8 passed, 2 skipped in 9.00s")
    commit("tests/test_d.py")
    _, ended, page = run("tested")
    assert (ended, ran()) == (["tested"], ["tests/test_b.py tests/test_d.py"])
    assert re.search(
        r"test_d\.py: 5 passed; on \w{12}: exit code 1: 1 failed, 8 passed, 2 skipped in 9\.00s \|", page
    )
    commit("code.py", "still more")
    fails("tests/test_b.py", "1 failed, 8 passed, 1 error in 9.00s")
    run("tested")
    assert ran() == [""]
    commit("code.py", "changed once more")
    fails("tests/test_b.py", "1 failed, 8 passed in 9.00s")
    commit("tests/test_d.py", "changed again")
    fails("tests/test_d.py", "1 failed, 3 passed in 5.00s")
    _, ended, page = run("tested")
    assert (ended, ran()) == (["tested"], ["tests/test_d.py"])
    runs = [
        r"tests/test_d\.py: 5 passed",
        r"tests/test_b\.py tests/test_d\.py: exit code 1: 1 failed, 3 passed in 5\.00s",
        r"exit code 1: 1 failed, 8 passed in 9\.00s \|",
    ]
    assert re.search(r"; on \w{12}: ".join(runs), page)
