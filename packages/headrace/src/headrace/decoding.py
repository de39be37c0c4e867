"""`decode_image`: image files read as uint8 tensors, with the pixels of `torchvision.io.decode_image`."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import torchvision.io
from PIL import ExifTags, Image
from torchvision.io import ImageReadMode

from headrace._native import abi, ffi
from headrace._native.render import RenderJob, render_file
from headrace.errors import NativeError

# The decoder that takes nothing but what torchvision and Pillow make the same pixels of.
DECODER = "headrace"
RGB = ("RGB", ImageReadMode.RGB)
JPEG = b"\xff\xd8\xff"
NO_DRAWS = np.zeros((0, abi.DRAWS))

Decode = Callable[[torch.Tensor], torch.Tensor]


def decode_image(
    input: torch.Tensor | str | os.PathLike[str],
    mode: str | ImageReadMode = ImageReadMode.UNCHANGED,
    apply_exif_orientation: bool = False,
) -> torch.Tensor:
    """`torchvision.io.decode_image`, with usual JPEGs in mode "RGB" decoded natively to the same pixels.

    An `ImageFolder` whose `loader` does nothing but call this function, or torchvision's, with ``mode="RGB"``
    is planned natively, with transforms of `torchvision.transforms.v2` on its tensors.

    Args:
        input: a path, or the file's bytes as a uint8 tensor [n].
        mode: "RGB" and so on, or an `ImageReadMode`; the file's own channels by default.
        apply_exif_orientation: whether the image is turned as its EXIF data say.

    Returns:
        uint8 [channels, height, width]; whatever torchvision returns for other files.

    Raises:
        RuntimeError, KeyError, OSError: as torchvision's function.
    """
    plain = isinstance(input, (torch.Tensor, str, os.PathLike)) and not apply_exif_orientation
    if mode in RGB and plain and decodes_as_pillow(by_torchvision):
        pixels = _decode_natively(input)
        if pixels is not None:
            return pixels
    decoded: torch.Tensor = torchvision.io.decode_image(input, mode, apply_exif_orientation)
    return decoded


def _decode_natively(input: Any) -> torch.Tensor | None:
    """uint8 [3, height, width], or None if torchvision has to say what the file is."""
    try:
        if not isinstance(input, torch.Tensor):
            data = np.frombuffer(Path(str(input)).read_bytes(), np.uint8)
        elif input.dtype == torch.uint8 and input.ndim == 1 and input.device.type == "cpu":
            data = np.ascontiguousarray(input.numpy())
        else:
            return None
        if data[:3].tobytes() != JPEG:
            return None
        size = width, height = ffi.image_size(data)
        pipeline = ffi.Pipeline([], height, width, decoders=1 << ffi.decoder_names().index(DECODER))
        pixels = torch.empty((height, width, 3), dtype=torch.uint8, device="cpu")
        whole = (0, 0, width, height)
        job = RenderJob(whole, size, 0, whole, (False, False), pipeline, NO_DRAWS, pixels.data_ptr())
        if render_file(data, [job]) != [True]:
            return None
    except (NativeError, OSError, TypeError, ValueError):
        return None
    return pixels.permute(2, 0, 1)


def by_torchvision(data: torch.Tensor) -> torch.Tensor:
    """Decodes a file by torchvision's function in mode "RGB", which may warn that it is deprecated."""
    decoded: torch.Tensor = torchvision.io.decode_image(data, "RGB")
    return decoded


def read_as_tensor(file: BinaryIO, decode: Decode) -> Image.Image:
    """Decodes `file` by a function of its bytes, closes it, and returns an image. Raises what the function
    does, and ValueError if that doesn't give uint8 [3, height, width]."""
    with file:
        data = file.read()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensor = decode(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    if tensor.dtype != torch.uint8 or tensor.ndim != 3 or len(tensor) != 3:
        raise ValueError(
            f"decode_image gives {tensor.dtype} {list(tensor.shape)} for this file, not uint8"
            " [3, height, width], which a native plan can't go on with: convert the file, or read it in a"
            " Dataset of your own, which runs as Python"
        )
    return Image.fromarray(np.ascontiguousarray(tensor.permute(1, 2, 0).numpy()))


@lru_cache
def decodes_as_pillow(decode: Decode, *, upright: bool = False) -> bool:
    """Returns whether a function of a file's bytes gives the pixels of Pillow's libjpeg, for each
    subsampling, and turns images as EXIF says if and only if `upright`."""
    if DECODER not in ffi.decoder_names():
        return False
    rng = np.random.default_rng(0)
    samples = rng.integers(0, 256, (13, 11, 3), dtype=np.uint8)
    noise = Image.fromarray(samples).resize((150, 122), Image.Resampling.BICUBIC)
    files = [_jpeg(noise, subsampling=each) for each in (0, 1, 2)]
    files += [_jpeg(noise.convert("L")), _jpeg(noise.resize((3, 5)), subsampling=2)]
    files.append(_with_halved_rows(_jpeg(noise.resize((160, 120)), subsampling=1)))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # a quarter turn
    turned = noise.size[::-1] if upright else noise.size
    alike = all(_decoded_alike(decode, data) for data in files)
    return alike and read_as_tensor(io.BytesIO(_jpeg(noise, exif=exif)), decode).size == turned


def _jpeg(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80, **options)
    return file.getvalue()


def _with_halved_rows(data: bytes) -> bytes:
    """A 4:2:2 file of 160×120 pixels as a 4:4:0 file of 80×240: the blocks of an MCU are as many."""
    at = data.index(b"\xff\xc0")
    size = (240).to_bytes(2, "big") + (80).to_bytes(2, "big")
    return data[: at + 5] + size + data[at + 9 : at + 11] + b"\x12" + data[at + 12 :]


def _decoded_alike(decode: Decode, data: bytes) -> bool:
    try:
        theirs = np.asarray(read_as_tensor(io.BytesIO(data), decode))
        ours = ffi.image_decode(data, DECODER, (0, 0, *ffi.image_size(data)))
    except (NativeError, RuntimeError, ValueError):
        return False
    return np.array_equal(theirs, ours)
