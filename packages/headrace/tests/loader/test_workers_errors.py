"""Exceptions of worker processes, as they are raised in the process that asked."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import Dataset

import headrace


class RefusedError(Exception):
    """With more than a message."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status
        self.more: dict[str, Any] = {}


class HolderError(RefusedError):
    """Can't be pickled."""

    def __init__(self) -> None:
        super().__init__("the store refused it", 403)
        self.more["lock"] = threading.Lock()


class OddError(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"odd {a} {b}")


def refused() -> Exception:
    error = RefusedError("the store refused it", 403)
    error.more["url"] = "s3://bucket"
    return error


class Raises(Dataset[int]):
    def __init__(self, make: Callable[[], BaseException]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 2:
            raise self.make()
        return index


def first_error(dataset: Dataset[Any], **options: Any) -> Exception:
    batches = iter(headrace.DataLoader(dataset, num_workers=1, worker_kind="process", **options))
    try:
        for _ in range(4):
            next(batches)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_an_exception_keeps_its_type_its_attributes_and_its_traceback() -> None:
    error = first_error(Raises(refused))
    assert isinstance(error, RefusedError)
    assert (error.args, error.status) == (("the store refused it", 403), 403)
    assert error.more == {"url": "s3://bucket"}
    shown = "".join(traceback.format_exception(error))
    assert "in DataLoader worker process 0" in shown
    assert "raise self.make()" in shown


@pytest.mark.parametrize(
    ("make", "message"),
    [(HolderError, "HolderError: .*the store refused it"), (lambda: OddError(1, 2), "OddError: odd 1 2")],
)
def test_one_that_cannot_be_sent_is_a_runtime_error_with_its_name(
    make: Callable[[], BaseException], message: str
) -> None:
    error = first_error(Raises(make))
    assert type(error) is RuntimeError
    with pytest.raises(RuntimeError, match=message):
        raise error
    assert "raise self.make()" in "".join(traceback.format_exception(error))


def stops(samples: list[Any]) -> Any:
    raise StopIteration


def test_a_stop_iteration_of_collate_fn_does_not_end_the_epoch() -> None:
    error = first_error(Raises(refused), collate_fn=stops)
    assert type(error) is RuntimeError
    assert "collate_fn raised StopIteration" in str(error)
