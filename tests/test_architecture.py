"""Which way the imports point, and how large a file may grow."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).parent.parent / "src" / "headrace"
FILES = sorted(ROOT.rglob("*.py"))

# What each part may import of ours. Nothing that isn't named here.
BASE = {"records", "errors", "_arrow", "_files"}
ALLOWED: dict[str, set[str]] = {
    "records": set(),
    "errors": set(),
    "_arrow": {"errors"},
    "_files": set(),
    "options": {"errors", "order"},
    "order": BASE,
    # Numbers need nothing of ours, but for one: what the native library decodes on this machine.
    "measure": {"errors", "_arrow", "_native"},
    "tuning": BASE,
    "_native": BASE,
    # What records of stores are kept in; what fetches them into it; which datasets do so.
    "cache": BASE,
    "remote": BASE | {"cache"},
    "sources": BASE | {"cache", "remote"},
    "plan": BASE | {"order", "sources"},
    "packs": BASE | {"remote", "sources", "_native", "measure"},
    "device": BASE | {"plan"},
    "engine": BASE | {"device", "order", "plan", "remote", "sources", "_native"},
    # Images outside of any batch: native decoding behind Pillow's interface.
    "lazy": BASE | {"engine", "_native"},
    "export": BASE,
    "loader": BASE
    | {"device", "order", "options", "plan", "engine", "export", "tuning", "measure", "sources", "_native"},
    "testing": BASE | {"plan", "sources", "engine", "loader"},
    # A stage of somebody else's pipeline: no loader around it.
    "ray_data": BASE | {"device", "engine", "order"},
    # The doctor has opinions on numbers that others measured, and on torch's DataLoader as well as on ours.
    "doctor": BASE | {"measure"},
    # Where measuring, opinions and both loaders meet.
    "examine": BASE | {"measure", "doctor", "loader"},
    # Written on what everyone may import: the proof that it is enough.
    "recipes": {"export", *headrace.__all__},
    "cli": BASE
    | {"packs", "sources", "measure", "loader", "doctor", "examine", "recipes", "export", "_native"},
    "__main__": {"cli"},
    "__init__": BASE | {"examine", "loader", "packs", "sources"},
}


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= (
                {node.module} if node.module != "headrace" else {f"headrace.{a.name}" for a in node.names}
            )
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("headrace.")}
    assert ours - {part(path)} <= ALLOWED[part(path)]
    if path.parent != ROOT / "_native":
        assert "ctypes" not in imports(path), "only _native speaks ctypes"


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.py")), ids=lambda path: path.name)
def test_recipes_use_public_names_only(path: Path) -> None:
    modules = {"headrace", "headrace.export"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("headrace"):
            assert node.module in modules or str(node.module).startswith("headrace.recipes"), node.module
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "headrace"
        ):
            assert node.attr in headrace.__all__


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 600
    assert path.stem not in ("utils", "common", "misc", "helpers")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != "__init__":
            first = node.body[min(1, len(node.body) - 1)] if ast.get_docstring(node) else node
            assert (node.end_lineno or 0) - first.lineno < 60, node.name


# What would run code out of data, or load a pickle.
DANGEROUS = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open"),
    *("torch.load", "np.load", "numpy.load", "joblib.load", "yaml.load", "eval", "exec", "os.system"),
}
# Messages between processes of one loader, over their own pipes and memory: no data set is read there.
OWN_PROCESSES = {"engine/parcel.py", "engine/shared_pickle.py", "remote/helper.py"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_data_is_never_unpickled_or_run(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in ("pickle", "marshal", "_pickle"):
            raise AssertionError(f"{node.module} is to be seen where it is used: import all of it")
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in DANGEROUS:
            continue
        name = ast.unparse(node.func)
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        safe = (
            (name == "torch.load" and given.get("weights_only") == "True")
            or (name in ("np.load", "numpy.load") and given.get("allow_pickle", "False") == "False")
            or (name == "pickle.loads" and str(path.relative_to(ROOT)) in OWN_PROCESSES)
        )
        assert safe, f"line {node.lineno}: {ast.unparse(node)}"


def test_no_shell_reads_what_data_says() -> None:
    for path in FILES:
        assert "shell=True" not in path.read_text(), path
