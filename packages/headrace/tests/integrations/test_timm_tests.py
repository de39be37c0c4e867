"""timm's own tests of its data sets, samplers and loaders, with `headrace.DataLoader` in torch's place.

They are in timm's source archive (3 MB), which is fetched once into data/. Its train.py is in no archive, so
that tests of it are left out here; the scenarios of test_integrations.py call what it calls.
"""

from __future__ import annotations

import faulthandler
from pathlib import Path

import pytest

from support.training_scripts import failed_tests, fetched

pytest.importorskip("timm")

SHA256 = "baa0b333339c46d3d6d4965d99b69f5053afed71210e8f433d7ea5ee6a18f0ec"
PACKAGE = "d8/f0/ef613e01647ba8e39d073df11bfe157ea16d0280a9b4a973f1caf0601856/timm-1.0.31.tar.gz"
SOURCES = f"https://files.pythonhosted.org/packages/{PACKAGE}"
NAMES = ("data", "scheduled_sampler", "naflex_dataset", "multilabel", "reader_wds")
TEST_SECONDS, SECONDS = 300, 1200


def failures(loader: str, tests: Path, place: Path) -> dict[str, str]:
    place.mkdir()
    (place / "tests").symlink_to(tests)
    files = [f"tests/test_{name}.py" for name in NAMES]
    return failed_tests(loader, [*files, "-k", "not cli and not script"], place, TEST_SECONDS, SECONDS)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
def test_timms_own_tests_fail_where_they_fail_with_torchs_loader(tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # the tests have limits of their own
    tests = fetched(SOURCES, SHA256, "*/tests/*.py")
    ours = failures("headrace", tests, tmp_path / "headrace")
    theirs = failures("torch", tests, tmp_path / "torch") if ours else {}
    assert {test: ours[test] for test in ours.keys() - theirs.keys()} == {}
