"""For tests of what is in deploy/."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.container import Container


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    made = Container(tmp_path)
    yield made
    made.close()
