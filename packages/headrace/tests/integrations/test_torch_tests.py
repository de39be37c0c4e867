"""PyTorch's own tests of its DataLoader, with `headrace.DataLoader` in its place.

The tests are in PyTorch's sources, as Debian keeps them (27 MB); they are fetched once into data/.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib.util
import json
import re
from pathlib import Path

import pytest

from support.training_scripts import failed_tests, fetched

SOURCES = "http://deb.debian.org/debian/pool/main/p/pytorch/pytorch_2.6.0+dfsg.orig.tar.xz"
SHA256 = "099a9601bc40d67656e75735c44abedb0fbe92d08817852ab7472eebb7e6ddff"
NAME = "test_dataloader.py"
ROOT = Path(__file__).parents[4]
# Test -> why it fails with Headrace only.
EXPECTED: dict[str, str] = json.loads(Path(__file__).with_name("torch_tests.json").read_text())
MOST_EXPECTED = 5
CLASSES = (
    "IntegrationTestDataLoaderDataPipe",
    "TestConcatDataset",
    "TestConvAfterFork",
    "TestCustomPinFn",
    "TestDataLoader",
    "TestDataLoaderPersistentWorkers",
    "TestDatasetRandomSplit",
    "TestDictDataLoader",
    "TestIndividualWorkerQueue",
    "TestNamedTupleDataLoader",
    "TestOutOfOrderDataLoader",
    "TestSetAffinity",
    "TestStackDataset",
    "TestStringDataLoader",
    "TestTensorDataset",
)
# It needs CUDA, and is made into classes for each device.
LEFT_OUT = {"TestDataLoaderDeviceType"}
# Some start a hundred processes by spawn, each of which imports torch.
TEST_SECONDS, CLASS_SECONDS = 2400, 7200
# The tests wait for so many seconds that a process ends, which is too short on a busy machine.
PATIENCE = """
def pytest_collection_modifyitems(items):
    for module in {item.module for item in items}:
        module.JOIN_TIMEOUT = 300.0
"""


@pytest.fixture(scope="module")
def tests() -> Path:
    """The file of tests."""
    for package in ("expecttest", "psutil"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} isn't installed")
    return fetched(SOURCES, SHA256, f"*/test/{NAME}") / NAME


def failures(loader: str, names: list[str], tests: Path, place: Path) -> dict[str, str]:
    """Messages of the tests that fail, by name, run with torch's loader or with "headrace"."""
    place.mkdir()
    (place / NAME).symlink_to(tests)
    (place / "conftest.py").write_text(PATIENCE)
    (place / "pytest.ini").write_text("[pytest]\n")
    return failed_tests(loader, [f"{NAME}::{name}" for name in names], place, TEST_SECONDS, CLASS_SECONDS)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3 * CLASS_SECONDS)
@pytest.mark.parametrize("name", CLASSES)
def test_torchs_own_tests_fail_where_expected_alone(name: str, tests: Path, tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # the tests have limits of their own
    run = functools.partial(failures, tests=tests)
    ours = run("headrace", [name], place=tmp_path / "first")
    expected = {test for test in EXPECTED if test.startswith(f"{name}::")}
    news = sorted(ours.keys() - expected)
    if news:
        # What fails with torch's own loader here, too, or passes by itself, is nothing to be fixed.
        again = run("headrace", news, place=tmp_path / "again")
        theirs = run("torch", news, place=tmp_path / "torch")
        assert {test: again[test] for test in again.keys() - theirs.keys()} == {}
    assert not expected - ours.keys(), "these pass: take them from torch_tests.json and from docs/workers.md"


@pytest.mark.long
@pytest.mark.slow
def test_all_classes_of_torchs_tests_are_run(tests: Path) -> None:
    text = tests.read_text(encoding="utf-8")
    found = set(re.findall(r"^class (\w+)\((?:TestCase|TestDataLoader)\)", text, re.MULTILINE))
    assert found == {*CLASSES, *LEFT_OUT}


def test_few_of_torchs_tests_are_expected_to_fail_and_the_docs_name_each() -> None:
    assert len(EXPECTED) <= MOST_EXPECTED
    page = (ROOT / "docs" / "workers.md").read_text(encoding="utf-8")
    for test, reason in EXPECTED.items():
        assert reason
        assert f"`{test.partition('::')[2]}`" in page, test
