"""The notebook runs from its first cell to its last."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "headrace.ipynb"


@pytest.mark.long
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat  # what these import takes seconds
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [
        output["text"] for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output
    ]
    assert any("plan: native" in text for text in printed)
    assert any("the same batch: True" in text for text in printed)
    plots = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(plots) == 2


def test_the_notebook_is_committed_as_it_was_run() -> None:
    """Its outputs are those of one run from a fresh kernel."""
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
