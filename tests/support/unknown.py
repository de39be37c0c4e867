"""Transforms of one's own, which the planner can't know: they run as Python."""

from __future__ import annotations

from torchvision import transforms as v1


class Jitter(v1.ColorJitter):
    """A ColorJitter that may do anything."""


class Augment(v1.RandAugment):
    """A RandAugment that may do anything."""


class Rotation(v1.RandomRotation):
    """A RandomRotation that may do anything."""
