"""When a request is tried again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headrace.errors import ConfigError


@dataclass(frozen=True)
class Retry:
    """Exponential backoff with full jitter (Brooker: "Exponential Backoff And Jitter", AWS, 2015).

    Attributes:
        tries: of one request, the first included.
        first_seconds: the most that the second try waits; each further one waits up to `base` times more.
        most_seconds: what no wait exceeds.
    """

    tries: int = 8
    first_seconds: float = 0.1
    base: float = 2.0
    most_seconds: float = 10.0

    def wait(self, failed: int, draw: random.Random) -> float:
        """Seconds before the next try after `failed` ones, 1 or more."""
        return draw.uniform(0.0, min(self.most_seconds, self.first_seconds * self.base ** (failed - 1)))

    def options(self) -> dict[str, Any]:
        """As obstore's `retry_config`."""
        first, most = timedelta(seconds=self.first_seconds), timedelta(seconds=self.most_seconds)
        backoff = {"init_backoff": first, "max_backoff": most, "base": self.base}
        return {"max_retries": self.tries - 1, "backoff": backoff}

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | None) -> Retry:
        """From obstore's `retry_config`: `max_retries`, and `backoff` with `init_backoff`, `max_backoff` and
        `base`; what isn't given keeps its default.

        Raises:
            ConfigError: another key, or a value that isn't one.
        """
        given = dict(options or {})
        backoff = dict(given.pop("backoff", None) or {})
        retries = given.pop("max_retries", cls.tries - 1)
        first = backoff.pop("init_backoff", cls.first_seconds)
        most, base = backoff.pop("max_backoff", cls.most_seconds), backoff.pop("base", cls.base)
        if given or backoff:
            raise ConfigError(
                f"retry_config: {', '.join([*given, *backoff])} isn't known. It takes max_retries, and"
                " backoff with init_backoff, max_backoff and base."
            )
        if not isinstance(retries, int) or retries < 0:
            raise ConfigError(f"retry_config: max_retries ({retries!r}) must be an int, 0 or more.")
        return cls(retries + 1, _seconds(first), float(base), _seconds(most))


def _seconds(value: Any) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, (int, float)) or seconds < 0:
        raise ConfigError(f"retry_config: {value!r} must be a timedelta or seconds, 0 or more.")
    return float(seconds)
