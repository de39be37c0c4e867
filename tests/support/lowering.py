"""Whole transforms as the planner lowers them: natively, or refused with the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchvision import transforms as v1

from headrace.plan.transform import LoweredTransform, lower_transform


def lowered(transform: Any, **images: Any) -> LoweredTransform:
    """Returns what native code does of a transform that it can do all of; `images` as `lower_transform`."""
    result = lower_transform(transform, **images)
    assert isinstance(result, LoweredTransform), result
    return result


def refusals(transform: Any, **images: Any) -> dict[str, str]:
    """Returns the steps to blame, and why; empty if native code does all of it."""
    result = lower_transform(transform, **images)
    if isinstance(result, LoweredTransform):
        return {}
    found = {step.text: step.reason for step in result if step.refused}
    assert found
    return found


def refusal(steps: Sequence[Any], **images: Any) -> str:
    """Returns why native code can't do all of a `Compose` of `steps`, or ""."""
    return "; ".join(refusals(v1.Compose(list(steps)), **images).values())
