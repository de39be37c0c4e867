"""Imports point one way, and files and folders stay below their ceilings.

docs/architecture.md has the same as a table: `python tests/test_architecture.py` writes it there.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import headrace

PACKAGES = Path(__file__).parents[1] / "packages"
PACKAGE = PACKAGES / "headrace"
ROOT = PACKAGE / "src" / "headrace"
FILES = sorted(ROOT.rglob("*.py"))
DOCTOR = PACKAGES / "headrace-doctor" / "src" / "headrace_doctor"
DOCTOR_FILES = sorted(DOCTOR.rglob("*.py"))

# What each part may import of ours. Nothing that isn't named here.
BASE = {"records", "errors", "_arrow", "_files", "_machine"}
ALLOWED: dict[str, set[str]] = {
    "records": set(),
    "errors": set(),
    "_torch_compat": set(),
    "_pillow_compat": set(),
    "lazy": set(),
    "_arrow": {"errors"},
    "_files": {"errors"},
    "_machine": set(),
    "order": BASE,
    "config": BASE | {"order"},
    "_native": BASE,
    # Object stores and the cache of their records are a folder of it.
    "sources": BASE | {"decoding", "transforms", "_native"},
    "cache": {"sources"},
    "decoding": BASE | {"_native"},
    "transforms": BASE | {"decoding", "order", "_native", "_torch_compat"},
    # What is planned depends on what the native library decodes.
    "plan": BASE | {"config", "order", "sources", "transforms", "_native", "_torch_compat"},
    "packs": BASE | {"sources", "_native"},
    "device": BASE | {"config", "plan", "transforms", "_torch_compat"},
    # Images outside of any batch: native decoding behind Pillow's interface.
    "deferred": BASE | {"decoding", "_native", "_pillow_compat", "_torch_compat", "plan", "transforms"},
    "engine": BASE
    | {"config", "decoding", "deferred", "device", "order", "plan", "sources", "transforms"}
    | {"_native", "_torch_compat"},
    "export": BASE,
    "build": BASE | {"config", "device", "engine", "order", "plan", "sources", "_torch_compat"},
    "loader": BASE | {"build", "config", "device", "engine", "export", "order", "plan", "sources", "_native"},
    "testing": BASE | {"order", "plan", "sources", "engine", "loader", "transforms"},
    # A stage of somebody else's pipeline: no loader around it.
    "ray_data": BASE | {"build", "config", "device", "engine", "order", "plan"},
    # Loaders for programs that call torch's class, and what they report.
    "replacement": {"errors", "loader"},
    "run": {"loader", "order", "records", "replacement"},
    "_startup": {"replacement"},
    # Written on what everyone may import: the proof that it is enough.
    "recipes": {"export", *headrace.__all__},
    "cli": BASE | {"loader", "packs", "recipes", "replacement", "sources", "_native"},
    "__main__": {"cli"},
    "__init__": BASE | {"decoding", "loader", "packs", "replacement", "sources"},
}

DOCTOR_BASE = {"errors", "machine"}
DOCTOR_ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "machine": set(),
    "measure": DOCTOR_BASE,
    "tune": DOCTOR_BASE | {"measure"},
    # Opinions on numbers that others measured.
    "doctor": DOCTOR_BASE | {"measure"},
    "examine": DOCTOR_BASE | {"measure", "doctor"},
    "cli": DOCTOR_BASE | {"doctor", "examine", "measure", "tune"},
    "__main__": {"cli"},
    "__init__": {"errors", "examine"},
}

# What each part holds, for the table in docs/architecture.md.
HOLDS = {
    "__init__": "the public names, imported when they are first used",
    "__main__": "`python -m headrace`",
    "_arrow": "pyarrow, where it is installed",
    "_files": "writing files whole or not at all",
    "_machine": "cores, memory and files that this process may really use",
    "_native": "the native library through ctypes, which nothing else uses",
    "_torch_compat": "every private name of torch that is used, with what is done without it",
    "lazy": "an error that says what took its place",
    "_pillow_compat": "every private name of Pillow that is used, with a check",
    "_startup": "what Python imports as it starts in the processes of `headrace run`",
    "build": "from a configuration and a plan to a stream of batches",
    "cache": "the public names of the cache of records on local disk ([cache](cache.md))",
    "cli": "the command, one file per verb",
    "config": "the loader's arguments, checked and frozen",
    "decoding": "`headrace.decode_image`, without all that loaders need",
    "device": "copies overlapped with the training step ([hazards](hazards.md), [feed](feed.md))",
    "engine": "what makes batches: native threads, Python threads, worker processes ([workers](workers.md))",
    "errors": "the tree of exceptions",
    "export": "statistics for Prometheus, TensorBoard, Perfetto and `headrace top` ([stats](stats.md))",
    "deferred": "images and arrays on memory that is filled when it is touched, and steps that are recorded",
    "loader": "the front door: torch's signature, `explain()`, `stats()`, `state_dict()`",
    "order": "which sample comes when: permutations, ranks, samplers ([order](order.md))",
    "packs": "making and checking packs and indexes ([packs](packs.md))",
    "plan": "recognition of datasets and transforms, the plan, `explain()`",
    "ray_data": "decoding as a stage of Ray Data ([ray](ray.md))",
    "recipes": "the ImageNet recipe, on public names alone ([training](training.md))",
    "records": "plain data: statistics and what was drawn",
    "replacement": "`headrace.install()`: Headrace in place of torch's DataLoader ([run](run.md))",
    "run": "loaders that report what they did, for `headrace run`",
    "sources": "a file per kind of dataset: files, packs, images in memory, [object stores](remote.md)",
    "testing": "what was drawn for a sample, and the sample made by torchvision",
    "transforms": "what is known of each transform, listed in `OPS`",
}


DOCTOR_HOLDS = {
    "__init__": "the public names",
    "__main__": "`headrace-doctor`",
    "cli": "the verbs, which the `headrace` command has, too: `doctor`, `tune`, `top`",
    "doctor": "judgements: from measurements to causes and advice ([doctor](doctor.md))",
    "errors": "exceptions, and what is printed of names and sizes",
    "examine": "`headrace_doctor.diagnose`, and the process in which a script is examined",
    "machine": "cores, memory and files that this process may really use",
    "measure": "numbers without judgement: machine, storage, GPUs, data sets, running loaders",
    "tune": "numbers of workers, tried one by one",
}


class Budget(NamedTuple):
    """Lines of Python that some parts may have together.

    Attributes:
        parts: names of the parts.
        lines: number of lines that they may have at most. It only goes down.
        intended: the number in the design, or None for what came later.
    """

    parts: tuple[str, ...]
    lines: int
    intended: int | None = None


# Lower a ceiling when lines go. Raising one needs a decision of its own, not a reason beside it.
BUDGETS = [
    Budget(("loader", "config", "build"), 1_174, 1_000),
    Budget(("transforms", "decoding"), 4_872, 4_600),
    Budget(("plan",), 1_409, 1_900),
    # 1,900, and what is new: OpenCV, albumentations, joint samples and processors.
    Budget(("deferred",), 4_622, 4_032),
    Budget(("engine",), 5_162, 4_700),
    Budget(("order",), 1_748, 1_150),
    Budget(("sources", "cache"), 4_118, 3_300),
    Budget(("packs", "ray_data"), 3_100, 2_950),
    Budget(("device",), 639, 600),
    Budget(("recipes",), 796, 800),
    Budget(
        (
            "__init__",
            "__main__",
            "_arrow",
            "_files",
            "_machine",
            "_native",
            "_pillow_compat",
            "_torch_compat",
            "cli",
            "errors",
            "export",
            "lazy",
            "records",
            "testing",
        ),
        3_920,
        3_000,
    ),
    Budget(("_startup", "replacement", "run"), 462),
]
ALL_PYTHON = Budget(tuple(HOLDS), 32_022, 28_400)
DOCTOR_PYTHON = Budget(tuple(DOCTOR_HOLDS), 8_658, 6_500)
NATIVE = 16_690
MAX_FILE, MAX_FUNCTION = 600, 60

ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"
TABLE = re.compile(
    r"(?<=<!-- table: tests/test_architecture.py -->\n).*?(?=<!-- end of table -->)", re.DOTALL
)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def part(path: Path) -> str:
    root = ROOT if path.is_relative_to(ROOT) else DOCTOR
    return path.relative_to(root).parts[0].removesuffix(".py")


@functools.cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= (
                {node.module} if node.module != "headrace" else {f"headrace.{a.name}" for a in node.names}
            )
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_imports_point_downwards() -> None:
    for path in FILES:
        ours = {name.split(".")[1] for name in imports(path) if name.startswith("headrace.")}
        assert ours - {part(path)} <= ALLOWED[part(path)], path
        if path.parent != ROOT / "_native":
            assert "ctypes" not in imports(path), f"{path}: only _native speaks ctypes"


def test_imports_of_the_doctor_point_downwards() -> None:
    for path in DOCTOR_FILES:
        ours = {name.split(".")[1] for name in imports(path) if name.startswith("headrace_doctor.")}
        assert ours - {part(path)} <= DOCTOR_ALLOWED[part(path)], path


def test_sources_are_told_apart_in_sources_alone() -> None:
    """Elsewhere a source is what `Source` says: nobody asks which one it is."""
    for path in (each for each in FILES if part(each) != "sources"):
        for node in ast.walk(parsed(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "isinstance"
            ):
                assert not re.search(r"\w*Source\b", ast.unparse(node.args[1])), f"{path}:{node.lineno}"


def test_the_loader_imports_nothing_of_the_doctor() -> None:
    for path in FILES:
        assert not {name for name in imports(path) if name.split(".")[0] == "headrace_doctor"}, path


def test_the_doctor_imports_public_names_of_the_loader_and_only_when_it_runs() -> None:
    public = {f"headrace.{name}" for name in headrace.__all__}
    for path in DOCTOR_FILES:
        tree = parsed(path)
        assert {name for name in imports(path) if re.match(r"headrace\b(?!_)", name)} <= {
            "headrace",
            "headrace.export",
            *public,
        }, path
        for node in tree.body:
            if isinstance(node, ast.Import):
                assert "headrace" not in {alias.name.split(".")[0] for alias in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert str(node.module).split(".")[0] != "headrace", path


MODULES = {
    ".".join((root.name, *path.relative_to(root).with_suffix("").parts)): path
    for root, files in ((ROOT, FILES), (DOCTOR, DOCTOR_FILES))
    for path in files
}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items()}


def imported_modules(path: Path) -> set[Path]:
    """Files of ours that a file imports, at its top or in its functions."""
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            both = ((f"{node.module}.{alias.name}", node.module) for alias in node.names)
            names |= {whole if whole in MODULES else module for whole, module in both}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {MODULES[name] for name in names if name in MODULES} - {path}


def test_no_modules_import_each_other_in_a_circle() -> None:
    left = {path: imported_modules(path) for path in [*FILES, *DOCTOR_FILES]}
    while done := [path for path, imported in left.items() if not imported & left.keys()]:
        for path in done:
            del left[path]
    assert not left, "in circles, or above one: " + ", ".join(
        str(path.relative_to(PACKAGES)) for path in left
    )


def test_the_engine_does_not_import_its_workers() -> None:
    for path in (ROOT / "engine").glob("*.py"):
        assert not {name for name in imports(path) if name.startswith("headrace.engine.workers")}, path


def lines_of(parts: tuple[str, ...]) -> int:
    return sum(len(path.read_text().splitlines()) for path in FILES if part(path) in parts)


@pytest.mark.parametrize("budget", [*BUDGETS, ALL_PYTHON], ids=lambda budget: "+".join(budget.parts[:3]))
def test_parts_stay_within_their_budget_of_lines(budget: Budget) -> None:
    assert lines_of(budget.parts) <= budget.lines


def test_the_doctor_stays_within_its_budget_of_lines() -> None:
    assert sum(len(path.read_text().splitlines()) for path in DOCTOR_FILES) <= DOCTOR_PYTHON.lines


def test_each_part_has_a_description_and_one_budget() -> None:
    parts = {part(path) for path in FILES}
    assert parts <= HOLDS.keys()
    assert {part(path) for path in DOCTOR_FILES} == DOCTOR_HOLDS.keys() == DOCTOR_ALLOWED.keys()
    budgeted = [part for budget in BUDGETS for part in budget.parts]
    assert sorted(budgeted) == sorted(HOLDS)


def test_the_native_code_stays_within_its_budget_of_lines() -> None:
    native = PACKAGE / "native"
    files = [path for place in ("src", "include") for path in (native / place).rglob("*.*")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= NATIVE


def table() -> Iterator[str]:
    """The parts from the top down, as Markdown."""
    yield "| part | holds | may import |"
    yield "|---|---|---|"
    existing = {part(path) for path in FILES}
    for name in reversed([name for name in ALLOWED if name in existing]):
        below = sorted(ALLOWED[name] & existing - BASE)
        names = "public names of the package" if name == "recipes" else ", ".join(below) or "nothing"
        yield f"| `{name}{'.py' if (ROOT / f'{name}.py').is_file() else '/'}` | {HOLDS[name]} | {names} |"
    yield ""
    yield "The doctor, a package of its own:"
    yield ""
    yield "| part | holds | may import |"
    yield "|---|---|---|"
    for name in reversed(DOCTOR_ALLOWED):
        names = ", ".join(sorted(DOCTOR_ALLOWED[name] - DOCTOR_BASE)) or "nothing"
        ending = ".py" if (DOCTOR / f"{name}.py").is_file() else "/"
        yield f"| `{name}{ending}` | {DOCTOR_HOLDS[name]} | {names} |"
    yield ""
    of_doctor = f"{DOCTOR_PYTHON.lines:,} in the doctor, where {DOCTOR_PYTHON.intended:,} are intended"
    yield f"Lines of Python, at most ({of_doctor}; native code: {NATIVE:,}):"
    yield ""
    yield "| parts | lines | intended |"
    yield "|---|---|---|"
    for budget in BUDGETS:
        intended = "" if budget.intended is None else f"{budget.intended:,}"
        yield f"| {', '.join(f'`{name}`' for name in budget.parts)} | {budget.lines:,} | {intended} |"
    yield f"| all of the loader | {ALL_PYTHON.lines:,} | {ALL_PYTHON.intended:,} |"


def test_the_architecture_page_has_this_table() -> None:
    found = TABLE.search(ARCHITECTURE.read_text())
    assert found is not None
    assert found[0].splitlines() == list(table()), "run: python tests/test_architecture.py"


def test_recipes_use_public_names_only() -> None:
    for path in (ROOT / "recipes").glob("*.py"):
        modules = {"headrace", "headrace.export"}
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("headrace"):
                assert node.module in modules or str(node.module).startswith("headrace.recipes"), (
                    f"{path}: {node.module}"
                )
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "headrace"
            ):
                assert node.attr in headrace.__all__, f"{path}: {node.attr}"


def test_files_and_functions_stay_readable() -> None:
    for path in (*FILES, *DOCTOR_FILES):
        assert len(path.read_text().splitlines()) <= MAX_FILE, path
        assert path.stem not in ("utils", "common", "misc", "helpers"), path
        for node in ast.walk(parsed(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != "__init__":
                first = node.body[min(1, len(node.body) - 1)] if ast.get_docstring(node) else node
                assert (node.end_lineno or 0) - first.lineno < MAX_FUNCTION, f"{path}: {node.name}"


# What would run code out of data, or load a pickle.
DANGEROUS = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open"),
    *("torch.load", "np.load", "numpy.load", "joblib.load", "yaml.load", "eval", "exec", "os.system"),
}
# Messages between processes of one loader, over their own pipes and memory: no data set is read there.
OWN_PROCESSES = {
    *(ROOT / "engine" / "workers" / f"{name}.py" for name in ("transport", "start", "worker")),
}


def test_data_is_never_unpickled_or_run() -> None:
    for path in (*FILES, *DOCTOR_FILES):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and node.module in ("pickle", "marshal", "_pickle"):
                raise AssertionError(
                    f"{path}: {node.module} is to be seen where it is used: import all of it"
                )
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in DANGEROUS:
                continue
            name = ast.unparse(node.func)
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            safe = (
                (name == "torch.load" and given.get("weights_only") == "True")
                or (name in ("np.load", "numpy.load") and given.get("allow_pickle", "False") == "False")
                or (name == "pickle.loads" and path in OWN_PROCESSES)
            )
            assert safe, f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_no_shell_reads_what_data_says() -> None:
    for path in [*FILES, *DOCTOR_FILES]:
        assert "shell=True" not in path.read_text(), path


if __name__ == "__main__":
    text = "\n".join(table()) + "\n"
    ARCHITECTURE.write_text(TABLE.sub(lambda _: text, ARCHITECTURE.read_text()))
