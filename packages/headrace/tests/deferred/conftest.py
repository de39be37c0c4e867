"""Each test begins and ends in a process whose images aren't deferred."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace import deferred
from headrace.deferred import recording


@pytest.fixture(autouse=True)
def not_installed() -> Iterator[None]:
    yield
    recording.stop()
    deferred.uninstall()
