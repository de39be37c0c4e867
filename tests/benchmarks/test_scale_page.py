"""The tables of docs/scale.md are those that the script gives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.experiment import BENCHMARKS, experiment

PAGE = BENCHMARKS.parent / "docs" / "scale.md"


def test_the_page_has_the_scripts_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = experiment("scale")
    copy = tmp_path / "scale.md"
    copy.write_text(scale.BLOCK.sub(r"\g<start>\g<end>", PAGE.read_text()))
    monkeypatch.setattr(scale, "PAGE", copy)
    monkeypatch.setattr(sys, "argv", ["scale.py", "--write"])
    scale.main()
    assert "| data | 80.27 TB |" in copy.read_text()
    assert copy.read_text() == PAGE.read_text(), "run: make figures"
