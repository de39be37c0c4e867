"""What is counted on the Python side of a loader; native code counts for itself."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from headrace.records import NativeStats, SampleFailure, StageStats

log = logging.getLogger("headrace")


@dataclass
class Meter:
    """Counts since the loader was made."""

    batches: int = 0
    samples: int = 0
    wait_seconds: float = 0.0
    collate_seconds: float = 0.0
    pillow_samples: int = 0
    pillow_seconds: float = 0.0

    def received(self, *, samples: int, wait_seconds: float, in_flight: int, ready: int) -> None:  # noqa: ARG002
        """One batch reached the user."""
        self.batches += 1
        self.samples += samples
        self.wait_seconds += wait_seconds

    def stages(self, native: NativeStats | None) -> tuple[StageStats, ...]:
        """Costs so far, native stages first."""
        stages = []
        if native is not None:
            sizes = {"read": native.bytes_read, "decode": 3 * native.pixels_decoded}
            stages = [
                StageStats(name, native.samples, nanoseconds / 1e9, sizes.get(name, 0))
                for name, nanoseconds in native.nanoseconds.items()
            ]
        return (
            *stages,
            StageStats("pillow", self.pillow_samples, self.pillow_seconds),
            StageStats("collate", self.samples, self.collate_seconds),
            StageStats("wait", self.samples, self.wait_seconds),
        )


@dataclass
class Failures:
    """Every sample that was skipped or replaced, oldest first; each is logged the first time."""

    records: list[SampleFailure] = field(default_factory=list)
    _logged: set[int] = field(default_factory=set)

    def add(self, failure: SampleFailure) -> None:
        """Appends a failure, and logs it if its sample hasn't failed before."""
        self.records.append(failure)
        if failure.index not in self._logged:
            self._logged.add(failure.index)
            log.warning("sample %d (%s) %s: %s", failure.index, failure.path, failure.action, failure.cause)
