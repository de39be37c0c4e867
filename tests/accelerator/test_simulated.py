"""Runs the tests of accelerators on the simulated one, which becomes torch's in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import accelerator
from accelerator import hazards
from support.python import run_python

ROOT = Path(__file__).parents[2]
# Tests marked `gpu` there, and all that is here.
FOLDERS = [
    "packages/headrace/tests/device",
    "packages/headrace/tests/loader/test_workers.py",
    "packages/headrace/tests/recipes/test_recipe_gpu.py",
    "tests/accelerator",
]
# Libraries and options. Neither CPython nor torch gives back all memory at its end, and none of CPython,
# torch and Headrace is compiled for ThreadSanitizer, which would report what they synchronize by atomics.
SANITIZERS = {
    "address": ("libasan.so", "detect_leaks=0"),
    "thread": ("libtsan.so", "ignore_noninstrumented_modules=1:die_after_fork=0"),
}
PROGRAM = """
import sys
import pytest

sys.exit(pytest.main(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", *sys.argv[1:]]))
"""


def run_tests(marks: str, seeds: int) -> None:
    try:
        accelerator.build()
    except accelerator.CannotBuildError as error:
        pytest.skip(str(error))
    env = os.environ | {"HEADRACE_ACCELERATOR": "simulated", "HEADRACE_SEEDS": str(seeds)}
    folders = [str(ROOT / folder) for folder in FOLDERS]
    options = ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    done = run_python(PROGRAM, marks, *options, *folders, env=env, timeout=7200)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_the_tests_of_accelerators() -> None:
    run_tests("gpu and not long", 20)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_the_tests_of_accelerators_with_many_delays() -> None:
    run_tests("gpu", 1000)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_tests_of_accelerators_under_sanitizers(sanitizer: str, tmp_path: Path) -> None:
    library, options = SANITIZERS[sanitizer]
    found = [subprocess.getoutput(f"g++ -print-file-name={name}") for name in (library, "libstdc++.so")]
    if not all(map(os.path.isabs, found)):
        pytest.skip("g++ has no such sanitizer here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMULATED_FLAGS", f"-fsanitize={sanitizer} -fno-omit-frame-pointer -g")
        accelerator.build()  # a compiler can't be started with the library that is preloaded
        env = os.environ | {"HEADRACE_ACCELERATOR": "simulated", "HEADRACE_SEEDS": "20"}
    # A test causes a segmentation fault. What is found would be lost in the output that pytest captures.
    options = f"{options}:handle_segv=0:log_path={tmp_path}/found"
    env |= {"LD_PRELOAD": " ".join(found), f"{library[3].upper()}SAN_OPTIONS": options}
    command = [
        "setarch",
        "-R",
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
    ]
    selected = ["-m", "gpu and not long", str(ROOT / "tests/accelerator")]
    done = subprocess.run([*command, *selected], env=env, cwd=ROOT, capture_output=True, text=True)
    reports = "".join(path.read_text() for path in tmp_path.glob("found*"))
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:] + reports[:8000]


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_threads_use_the_accelerator_under_sanitizers(sanitizer: str, tmp_path: Path) -> None:
    program, sources = tmp_path / "stress", [accelerator.HERE / name for name in ("stress.cpp", "device.cpp")]
    flags = ["-std=c++20", "-O1", "-g", "-pthread", f"-fsanitize={sanitizer}"]
    if subprocess.run(
        ["g++", *flags, *map(str, sources), "-o", str(program)], capture_output=True
    ).returncode:
        pytest.skip("g++ has no such sanitizer here")
    done = subprocess.run(["setarch", "-R", str(program)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0 wrong\n"), done.stderr[-8000:]


def test_the_table_of_rules_is_that_of_the_script() -> None:
    text = (ROOT / "docs/hazards.md").read_text()
    assert "\n".join(["-->", *hazards.table(), "<!-- end of table -->"]) in text


@pytest.mark.parametrize("rule", hazards.RULES, ids=lambda rule: rule.text)
def test_a_rule_names_code_and_a_test_that_exist(rule: hazards.Rule) -> None:
    module = importlib.util.find_spec(f"headrace.{rule.module}")
    assert module is not None
    assert module.origin is not None
    assert Path(module.origin).read_text().count(rule.code) == 1
    assert f"def {rule.test.partition('[')[0]}(" in (ROOT / hazards.FEED).read_text()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", hazards.RULES, ids=lambda rule: rule.text)
def test_a_test_fails_without_the_rule(rule: hazards.Rule) -> None:
    assert hazards.passes(rule, removed=False)
    assert not hazards.passes(rule, removed=True)
