"""Plain data that crosses layers. Nothing here computes anything or imports anything of ours."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

# What was drawn for one step of one sample, in pixels of that step's input:
# RandomResizedCrop (top, left, height, width); RandomCrop (top, left, 0, 0) in the padded image;
# flips (1 or 0, 0, 0, 0); steps without randomness (0, 0, 0, 0).
Draw = tuple[int, int, int, int]


@dataclass(frozen=True)
class SampleFailure:
    """A sample that was skipped or replaced, and why. `index` is the dataset's."""

    index: int
    path: str | None
    cause: str
    action: str  # "skipped" or "replaced"

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return asdict(self)
