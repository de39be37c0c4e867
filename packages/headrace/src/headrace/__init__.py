"""Headrace: a drop-in for torch.utils.data.DataLoader that runs image pipelines natively, bit for bit."""

import importlib
import typing

if typing.TYPE_CHECKING:
    from headrace.decoding import decode_image
    from headrace.errors import ConfigError, HeadraceError, NativeError, PackError, RemoteError, SampleError
    from headrace.loader import DataLoader
    from headrace.packs.pack import pack
    from headrace.replacement import install, uninstall
    from headrace.sources.image import ImageDataset
    from headrace.sources.packed import PackedDataset
    from headrace.sources.sizes import image_sizes

__all__ = [
    "ConfigError",
    "DataLoader",
    "HeadraceError",
    "ImageDataset",
    "NativeError",
    "PackError",
    "PackedDataset",
    "RemoteError",
    "SampleError",
    "decode_image",
    "image_sizes",
    "install",
    "pack",
    "uninstall",
]

# Imported when they are first asked for: a worker process that doesn't start by fork imports this package for
# a small part of it, and torchvision alone would take it as long as torch does.
_PLACES = {
    **dict.fromkeys(
        ("ConfigError", "HeadraceError", "NativeError", "PackError", "RemoteError", "SampleError"),
        "headrace.errors",
    ),
    "DataLoader": "headrace.loader",
    "ImageDataset": "headrace.sources.image",
    "decode_image": "headrace.decoding",
    "PackedDataset": "headrace.sources.packed",
    "image_sizes": "headrace.sources.sizes",
    "install": "headrace.replacement",
    "pack": "headrace.packs.pack",
    "uninstall": "headrace.replacement",
}


# What was here before, and what to use instead.
_MOVED = {"diagnose": "headrace_doctor.diagnose (pip install headrace-doctor)"}


def _version() -> str:
    """The version of the package that is installed."""
    from importlib import metadata

    try:
        return metadata.version("headrace")
    except metadata.PackageNotFoundError:
        return "0+unknown"  # its sources, which are not installed


def __getattr__(name: str) -> typing.Any:
    if name == "__version__":
        globals()[name] = _version()
        return globals()[name]
    if name in _MOVED:
        raise AttributeError(f"headrace.{name} has moved: use {_MOVED[name]}")
    if name not in _PLACES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
