"""A part of what `tests/fuzz/images.py` generates, in every run."""

from __future__ import annotations

import pytest
from fuzz import images

FILES = 90
ALL_FILES = 10_000


@pytest.mark.parametrize("seed", [1, 2])
def test_generated_files_of_every_format_have_pillows_pixels(seed: int) -> None:
    found = images.run(FILES, seed)
    assert sum(found[name] for name in images.native_formats()) == FILES


@pytest.mark.long
def test_ten_thousand_generated_files_have_pillows_pixels() -> None:
    found = images.run(ALL_FILES, 0)
    assert sum(found[name] for name in images.native_formats()) == ALL_FILES
