"""Every private name of torchvision that is used. If one is missing, the AttributeError makes a transform
stay Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, autoaugment, v2


def augmentation_space(
    transform: Any, bins: int, size: tuple[int, int]
) -> dict[str, tuple[npt.NDArray[np.float64], bool]]:
    """The `bins` magnitudes, if any, of each operation of a RandAugment, AutoAugment, TrivialAugmentWide or
    AugMix for an image of `size` (height, width), and whether they may be negative."""
    found: dict[str, Any]
    _ = v2.AutoAugment._apply_image_or_video_transform, autoaugment._apply_op  # for `apply_operation`
    if isinstance(transform, v2.Transform):
        every = getattr(transform, "all_ops", True)  # AugMix alone can leave out some
        space = transform._AUGMENTATION_SPACE if every else transform._PARTIAL_AUGMENTATION_SPACE
        found = {name: (values(bins, *size), signed) for name, (values, signed) in space.items()}
    elif isinstance(transform, v1.TrivialAugmentWide):
        found = transform._augmentation_space(bins)
    else:
        found = transform._augmentation_space(bins, size)
    return {
        name: (np.empty(0) if values is None or values.ndim == 0 else values.double().numpy(), bool(signed))
        for name, (values, signed) in found.items()
    }


def apply_operation(
    image: Any, name: str, magnitude: float, mode: InterpolationMode, fill: Any, *, is_v2: bool
) -> Any:
    """Applies an operation of torchvision's policies to an image, or of a uint8 tensor."""
    if is_v2:
        by_type = {type(image): fill}
        return v2.AutoAugment()._apply_image_or_video_transform(image, name, magnitude, mode, by_type)
    return autoaugment._apply_op(image, name, magnitude, mode, fill)


def policies_of(transform: Any) -> Any:
    """The policies of an AutoAugment: pairs of (operation, probability, place of its magnitude)."""
    return transform._policies if isinstance(transform, v2.Transform) else transform.policies


def most_severe(transform: Any) -> Any:
    """Returns how many magnitudes an AugMix has for each operation."""
    return transform._PARAMETER_MAX
