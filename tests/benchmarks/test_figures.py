"""The README and docs/ show what the newest records in benchmarks/results hold."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from support.experiment import BENCHMARKS, experiment

ROOT = BENCHMARKS.parent
CLAIM = re.compile(r"\d ?(?:×(?!\d)|times (?:as fast|torch)|(?:images|samples)(?:/s| per second))")


@pytest.fixture
def figures() -> ModuleType:
    return experiment("figures")


def test_pages_have_the_tables_of_the_newest_records(figures: ModuleType) -> None:
    assert {"README.md", "docs/benchmarks.md"} <= {*figures.PAGES}
    names = []
    for page in figures.PAGES:
        text = (ROOT / page).read_text()
        names += [match["name"] for match in figures.BLOCK.finditer(text)]
        assert figures.filled(page) == text, f"{page}: run make figures"
    assert {*names} == {*figures.TABLES}


@pytest.mark.parametrize("name", ["pipelines", "loaders"])
def test_a_chart_shows_the_newest_record(figures: ModuleType, name: str) -> None:
    with Image.open(figures.RESULTS / f"{name}.png") as image:
        assert image.info["Source"] == figures.newest(name)["file"], "run: make figures"


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_rates_are_shown_in_these_tables_alone(figures: ModuleType, page: str) -> None:
    assert CLAIM.findall(figures.BLOCK.sub("", (ROOT / page).read_text())) == []


def test_a_table_without_a_record_says_so(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "newest", lambda _: {})
    (tmp_path / "README.md").write_text(
        "<!-- table: benchmarks/figures.py loaders -->\n<!-- end of table -->"
    )
    assert "Not measured on this version" in figures.filled("README.md")


def test_a_measurement_continues_with_the_same_code_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = experiment("machine")
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    code, record = tmp_path / "packages" / "one" / "src" / "code.py", tmp_path / "record.json"

    def commit(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for command in (
            ["add", str(path)],
            ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c"],
        ):
            subprocess.run(["git", *command], cwd=tmp_path, check=True)

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(code, "one")
    machine.keep({"machine": machine.describe(), "rows": {"a": 1}}, record)
    commit(tmp_path / "benchmarks" / "results" / "a.json", json.dumps({}))
    assert machine.continued(record)["rows"] == {"a": 1}
    commit(code, "two")
    assert machine.continued(record) == {}


def test_a_measurement_is_complete_while_what_it_depends_on_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, measure = experiment("machine"), experiment("measure")
    monkeypatch.setattr(measure.machine, "ROOT", tmp_path)

    def commit(name: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name + path.read_text() if path.exists() else name)
        identity = ("-c", "user.name=a", "-c", "user.email=b")
        for command in (["add", name], [*identity, "commit", "-qm", name]):
            subprocess.run(["git", *command], cwd=tmp_path, check=True)
        head = ["git", "rev-parse", "HEAD"]
        return subprocess.run(head, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    benchmarks = {benchmark.name: benchmark for benchmark in measure.BENCHMARKS}
    floor, remote = benchmarks["floor"], benchmarks["remote"]
    for name in ("benchmarks/floor.py", "benchmarks/rows.py", "packages/one/src/code.py"):
        first = commit(name)
        record = {"machine": {**machine.describe(), "cpu": "another", "commit": first}}
        monkeypatch.setattr(measure.machine, "newest", lambda _, record=record: record)
        commit("benchmarks/tuning.py")
        commit("benchmarks/measure.py")
        assert floor.complete()
        assert remote.complete()
        commit("benchmarks/remote_peers.py")
        assert floor.complete()
        assert not remote.complete()
        commit(name)
        assert not floor.complete()
