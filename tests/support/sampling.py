"""Chooses which of many like cases run by default, and which in `make test-long` only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(every: int, cases: Iterable[Any]) -> list[Any]:
    """The cases, all but one in `every` of them marked as long.

    Cases that are tuples become several arguments. A case is named by its values: a class or function by its
    name, anything else by what str() gives.
    """
    marked = []
    for number, case in enumerate(cases):
        marks = () if number % every == 0 else (pytest.mark.long, pytest.mark.slow)
        values = case if isinstance(case, tuple) else (case,)
        marked.append(
            pytest.param(
                *values, marks=marks, id="-".join(str(getattr(value, "__name__", value)) for value in values)
            )
        )
    return marked
