"""The errors: what they say, what they are, and that they survive a worker process."""

from __future__ import annotations

import pickle

import pytest

from headrace.errors import ConfigError, HeadraceError, NativeError, RemoteError, SampleError


def test_a_sample_error_says_which_where_why_and_what_to_do() -> None:
    error = SampleError.at(17, "/data/a.jpg", "truncated after 512 bytes")
    assert str(error) == (
        "sample 17 (/data/a.jpg) can't be loaded: truncated after 512 bytes. Repair or remove it, or pass"
        " on_error='skip' or on_error='replace' to continue without it."
    )
    assert (error.index, error.path, error.cause) == (17, "/data/a.jpg", "truncated after 512 bytes")


def test_a_sample_error_without_a_path() -> None:
    assert str(SampleError.at(3, None, "no data")).startswith("sample 3 can't be loaded: no data.")


def test_a_path_that_isnt_text_can_be_printed() -> None:
    str(SampleError.at(0, "/data/\udcff.jpg", "x")).encode("utf-8")


def test_a_sample_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(SampleError.at(17, "/data/a.jpg", "empty")))
    assert (error.index, error.path, error.cause) == (17, "/data/a.jpg", "empty")
    assert "sample 17 (/data/a.jpg)" in str(error)


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [(ConfigError, ValueError), (NativeError, RuntimeError), (SampleError, OSError), (RemoteError, OSError)],
)
def test_each_is_a_builtin_too_and_can_be_made_from_one_message(
    cls: type[HeadraceError], builtin: type[Exception]
) -> None:
    """torch re-raises an exception of a worker as type(error)(message)."""
    error = cls("Caught in worker 0.\nOriginal Traceback")
    assert isinstance(error, HeadraceError)
    assert isinstance(error, builtin)
    assert str(error) == "Caught in worker 0.\nOriginal Traceback"
    assert not getattr(cls, "message", None)  # torch would pass it as a keyword
