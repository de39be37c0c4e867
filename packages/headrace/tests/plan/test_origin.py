"""Names and places of the user's objects."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms as v1

from headrace.transforms.origin import describe_callable, located, location


def function(value: Any) -> Any:
    return value


class Callable:
    """A class of the user's."""

    def __call__(self, value: Any) -> Any:
        return value

    def method(self, value: Any) -> Any:
        return value


FUNCTION_LINE = function.__code__.co_firstlineno
CLASS_LINE = Callable.__call__.__code__.co_firstlineno - 3


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)


@pytest.mark.parametrize(
    ("value", "name", "line"),
    [
        (function, "function", FUNCTION_LINE),
        (functools.partial(function, 1), "partial(function)", FUNCTION_LINE),
        (functools.lru_cache(function), None, FUNCTION_LINE),
        (Callable().method, "Callable.method", CLASS_LINE + 6),
        (Callable(), "Callable", CLASS_LINE),
        (Callable, "Callable", CLASS_LINE),
    ],
)
def test_users_objects(value: Any, name: str | None, line: int) -> None:
    if name is not None:
        assert describe_callable(value) == name
    assert location(value) == f"test_origin.py:{line}"


def test_another_directory_gives_the_whole_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert location(function) == f"{__file__}:{FUNCTION_LINE}"


@pytest.mark.parametrize("value", [v1.ToTensor(), torch.nn.Identity(), abs, len, 3])
def test_libraries_objects_need_no_place(value: Any) -> None:
    assert location(value) is None
    assert located(value) == describe_callable(value)


def test_a_class_without_source() -> None:
    namespace: dict[str, Any] = {"__name__": "shell"}
    exec(compile("class Shell:\n    def __call__(self, x):\n        return x", "<shell>", "exec"), namespace)
    assert location(namespace["Shell"]()) == "<shell>:2"
    assert describe_callable(namespace["Shell"]()) == "Shell"
    assert location(type("Empty", (), {"__module__": "shell"})()) is None


def test_a_function_is_named_with_file_and_line() -> None:
    assert located(function) == f"function (test_origin.py:{FUNCTION_LINE})"
