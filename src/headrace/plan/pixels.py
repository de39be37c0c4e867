"""Which of torchvision's transforms look at a picture's pixels and at nothing else of it."""

from __future__ import annotations

from typing import Any

from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace.transforms.changed import find_change

# They call what the user gave them: transforms, to be looked at one by one, or a function of any kind.
HOLDERS = (
    v1.Compose,
    v1.RandomApply,
    v1.RandomChoice,
    v1.RandomOrder,
    v2.Compose,
    v2.RandomApply,
    v2.RandomChoice,
    v2.RandomOrder,
)
FUNCTIONS = (v1.Lambda, v2.Lambda)


def sees_pixels_only(transform: Any) -> bool:
    """Whether `transform` is one of torchvision's own that can't tell two pictures of the same pixels apart.

    A function of the user's may: `PIL.ImageOps.exif_transpose` looks at the file's EXIF data.
    """
    if not type(transform).__module__.startswith("torchvision.transforms."):
        return type(transform) is nn.Identity
    if find_change(transform) is not None or isinstance(transform, FUNCTIONS):
        return False
    if isinstance(transform, HOLDERS):
        return all(sees_pixels_only(inner) for inner in transform.transforms)
    return True
