"""Runs the tests of accelerators on the simulated one, which becomes torch's in a process of its own."""

from __future__ import annotations

import os
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
    done = run_python(PROGRAM, marks, *options, *folders, env=env, timeout=3600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_the_tests_of_accelerators() -> None:
    run_tests("gpu and not long", 20)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_tests_of_accelerators_with_many_delays() -> None:
    run_tests("gpu", 1000)


def test_the_table_of_rules_is_that_of_the_script() -> None:
    text = (ROOT / "docs/hazards.md").read_text()
    assert "\n".join(["-->", *hazards.table(), "<!-- end of table -->"]) in text


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", hazards.RULES, ids=lambda rule: rule.text)
def test_a_test_fails_without_the_rule(rule: hazards.Rule) -> None:
    assert hazards.passes(rule, removed=False)
    assert not hazards.passes(rule, removed=True)
