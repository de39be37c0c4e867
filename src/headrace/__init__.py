"""Headrace: a drop-in for torch.utils.data.DataLoader that runs image pipelines natively, bit for bit."""

from headrace.errors import ConfigError, HeadraceError, NativeError, PackError, SampleError
from headrace.loader import DataLoader
from headrace.packs.pack import pack
from headrace.sources.image import ImageDataset
from headrace.sources.packed import PackedDataset

__all__ = [
    "ConfigError",
    "DataLoader",
    "HeadraceError",
    "ImageDataset",
    "NativeError",
    "PackError",
    "PackedDataset",
    "SampleError",
    "pack",
]
