"""Headrace: a drop-in for torch.utils.data.DataLoader that runs image pipelines natively, bit for bit."""

from headrace.errors import ConfigError, HeadraceError, NativeError, SampleError
from headrace.loader import DataLoader
from headrace.sources.image import ImageDataset

__all__ = [
    "ConfigError",
    "DataLoader",
    "HeadraceError",
    "ImageDataset",
    "NativeError",
    "SampleError",
]
