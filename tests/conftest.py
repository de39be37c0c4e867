"""For all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_memory_of_other_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Settings that were found are kept in a cache of this test run's own, subprocesses included."""
    before = os.environ.get("XDG_CACHE_HOME")
    cache = tmp_path_factory.mktemp("cache")
    os.environ["XDG_CACHE_HOME"] = str(cache)
    yield cache
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before
