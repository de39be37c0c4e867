"""Transforms of one's own, which the planner can't know: they run as Python."""

from __future__ import annotations

from typing import Any

from torchvision import transforms as v1


class Jitter(v1.ColorJitter):
    """A ColorJitter that may do anything."""

    def forward(self, img: Any) -> Any:
        return super().forward(img)


class Augment(v1.RandAugment):
    """A RandAugment that may do anything."""

    def forward(self, img: Any) -> Any:
        return super().forward(img)


class Rotation(v1.RandomRotation):
    """A RandomRotation that may do anything."""

    def forward(self, img: Any) -> Any:
        return super().forward(img)
