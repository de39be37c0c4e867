"""Libraries that some tests need, and that an extra of this package brings."""

from __future__ import annotations

from typing import Any

import pytest


def integration(module: str) -> Any:
    """A module of a library of the extra `integrations`; the test, or its file, is skipped without it."""
    library = module.partition(".")[0]
    reason = f"{library} isn't installed (pip install 'headrace[integrations]')"
    return pytest.importorskip(module, reason=reason, exc_type=ImportError)
