from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.faults import Faults


@pytest.fixture
def faults() -> Iterator[Faults]:
    """Of the library that test_storage.py has preloaded."""
    assert "faults.so" in os.environ.get("LD_PRELOAD", ""), "run by test_storage.py"
    rules = Faults(Path(os.environ["HEADRACE_FAULTS"]))
    rules()
    yield rules
    rules()
