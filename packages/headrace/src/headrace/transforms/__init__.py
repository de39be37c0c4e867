"""Ops that stand for other libraries' transforms: a class for each, and `OPS`, the list of them.

A transform is matched by its class, or that of a base that it changes nothing of. All others run as Python.
The tests run every op against torchvision itself. docs/adding-a-transform.md says how to add one.
"""

from __future__ import annotations

from headrace.transforms.aug_mix import AugMix
from headrace.transforms.chance import (
    HorizontalFlip,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSharpness,
    RandomSolarize,
    VerticalFlip,
)
from headrace.transforms.colors import (
    ChannelPermutation,
    ColorJitter,
    Grayscale,
    PhotometricDistort,
    RandomGrayscale,
)
from headrace.transforms.crops import CenterCrop, MultiCrop, Pad, RandomCrop, RandomCropOrPad
from headrace.transforms.gaussian_blur import GaussianBlur
from headrace.transforms.holders import Group, RandomApply, RandomChoice, RandomOrder
from headrace.transforms.levels import (
    ConvertDtype,
    Identity,
    Lambda,
    Normalize,
    ToPureTensor,
    ToRGB,
    ToTensor,
)
from headrace.transforms.lookup import find_op, known_base, register
from headrace.transforms.op import Op
from headrace.transforms.policies import AutoAugment, RandAugment, TrivialAugmentWide
from headrace.transforms.random_erasing import RandomErasing
from headrace.transforms.random_sizes import (
    RandomResize,
    RandomShortestSize,
    RandomZoomOut,
    ResizeKeepRatio,
    ScaleJitter,
    TimmResizedCrop,
)
from headrace.transforms.resize import RandomResizedCrop, Resize, ResizeShorter
from headrace.transforms.timm_augment import TimmAugment, TimmAugMix
from headrace.transforms.warps import RandomAffine, RandomPerspective, RandomRotation

__all__ = ["OPS", "find_op", "known_base"]

# A line for each file, or several.
OPS: tuple[type[Op], ...] = (
    *(RandomResizedCrop, Resize, ResizeShorter),
    *(RandomShortestSize, RandomResize, ScaleJitter, RandomZoomOut, TimmResizedCrop, ResizeKeepRatio),
    *(CenterCrop, RandomCrop, RandomCropOrPad, MultiCrop, Pad),
    *(HorizontalFlip, VerticalFlip, RandomInvert, RandomPosterize, RandomSolarize, RandomAutocontrast),
    *(RandomEqualize, RandomSharpness),
    *(RandomRotation, RandomAffine, RandomPerspective),
    *(ColorJitter, Grayscale, RandomGrayscale, ChannelPermutation, PhotometricDistort),
    GaussianBlur,
    *(RandomApply, RandomChoice, RandomOrder, Group),
    *(RandAugment, AutoAugment, TrivialAugmentWide, AugMix, TimmAugment, TimmAugMix),
    *(ToTensor, ToPureTensor, ConvertDtype, Normalize, Identity, ToRGB, Lambda),
    RandomErasing,
)

register(OPS, functions=Lambda)
