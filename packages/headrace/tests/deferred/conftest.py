"""Each test begins and ends in a process whose images aren't deferred; in it small ones may be, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.deferred import images
from support.deferred_images import start_recording, stop_recording


@pytest.fixture(autouse=True)
def not_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(images, "FEWEST_PIXELS", 1)
    yield
    stop_recording()


@pytest.fixture
def recorded(not_installed: None) -> None:
    """Images are deferred, and transforms record, as in a worker process."""
    start_recording()
