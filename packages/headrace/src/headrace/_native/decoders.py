"""Chooses which native decoders are used, for which formats, and which Pillow they must equal."""

from __future__ import annotations

import os

import PIL

from headrace._native import ffi
from headrace.errors import ConfigError

# Restricts the decoders, to find out which of them causes a problem.
VARIABLE = "HEADRACE_DECODERS"

# What decodes each format, by Pillow's name of it. A build has the decoders whose libraries it found.
FORMATS = {
    "JPEG": ("headrace", "libjpeg-crop", "libjpeg-full"),
    "PNG": ("libdeflate",),
    "WEBP": ("libwebp",),
}


def native_formats() -> tuple[str, ...]:
    """The formats that this build of the native library decodes, by Pillow's names."""
    names = ffi.decoder_names()
    return tuple(format for format, decoders in FORMATS.items() if any(name in names for name in decoders))


def missing_formats() -> str:
    """A remark on the formats that this build leaves to Pillow as it lacks their library, or an empty one."""
    missing = [format for format in FORMATS if format not in native_formats()]
    without = " and ".join(FORMATS[format][-1] for format in missing)
    return f"built without {without}: {' and '.join(missing)} files are decoded by Pillow" if missing else ""


def pillow_resizes_vertically_first() -> bool:
    """True if the installed Pillow may run the vertical pass of a resize first (13.0, its PR 9549)."""
    return int(PIL.__version__.split(".")[0]) >= 13


def decoder_choice() -> tuple[str, ...]:
    """The native decoders that are used, in the order in which they are tried: the best here, or those of the
    environment variable HEADRACE_DECODERS, joined by commas; "pillow" alone stands for no native one.

    Raises:
        ConfigError: the variable names a decoder that doesn't exist.
    """
    names = ffi.decoder_names()
    chosen = os.environ.get(VARIABLE)
    if chosen:
        known = [*(name for each in FORMATS.values() for name in each), "pillow"]
        if not set(chosen.split(",")) <= set(known):
            raise ConfigError(f"{VARIABLE} ({chosen!r}) must be of {', '.join(known)}, joined by commas.")
        return tuple(name for name in names if name in chosen.split(","))
    # libjpeg-turbo has SIMD code for more processors than our decoder, whose scalar twin it beats.
    return tuple(name for name in names if name != "headrace" or ffi.simd_active() != "scalar")


def decoder_bits() -> int:
    """`decoder_choice` as native code takes it: bit i allows decoder i."""
    names = ffi.decoder_names()
    return sum(1 << names.index(name) for name in decoder_choice())
