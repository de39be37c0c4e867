"""How fast this machine's cores decode JPEGs, by Pillow and by the native library."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image, features

from headrace._native import ffi
from headrace.errors import NativeError

# ImageNet's most common size.
WIDTH, HEIGHT = 500, 375
# A single image, repeated, decodes a quarter faster than photos do, as branch prediction learns it. With 24
# different ones, pixels per second are within 5 % of those of 150 photos (Zen 4).
IMAGES = 24
QUALITY = 88
SECONDS = 0.3
SEED = 0


@dataclass(frozen=True)
class NativeDecoding:
    """The native library's rates, in images per second.

    Attributes:
        per_core: rate of one core.
        together: rate of all usable cores at once.
        simd: instruction sets that this processor and the library's build have in common.
        simd_active: the one in use.
        libjpeg_turbo: version of the library that decodes what Headrace's own decoder doesn't support.
    """

    per_core: float
    together: float
    simd: tuple[str, ...]
    simd_active: str
    libjpeg_turbo: str


@dataclass(frozen=True)
class Decoding:
    """Decoding rates of this machine.

    Attributes:
        width, height: size of the images, in pixels.
        image_bytes: mean size of their files.
        pillow_per_core: images per second by Pillow on one core.
        pillow_turbo: version of Pillow's libjpeg-turbo; None: it has another, slower libjpeg.
        native: rates of the native library; None: see `native_missing`.
        native_missing: why the native library can't be used; "" if it can.
    """

    width: int
    height: int
    image_bytes: float
    pillow_per_core: float
    pillow_turbo: str | None
    native: NativeDecoding | None
    native_missing: str = ""


def measure_decoding(cores: int) -> Decoding:
    """Decodes whole images to RGB for about 1.5 s; `cores`: threads for the rate of all together."""
    files = images(IMAGES)
    native, missing = None, ""
    try:
        native = _native(files, cores)
    except NativeError as error:
        missing = str(error)
    return Decoding(
        width=WIDTH,
        height=HEIGHT,
        image_bytes=sum(map(len, files)) / len(files),
        pillow_per_core=_per_core(_by_pillow, files),
        pillow_turbo=features.version_feature("libjpeg_turbo") if features.check("libjpeg_turbo") else None,
        native=native,
        native_missing=missing,
    )


def images(count: int) -> list[bytes]:
    """JPEG files with the statistics of photos: 4:2:0, about 90 kB for 500 × 375.

    Amplitudes fall with frequency to the power 1.2, phases are random; photos have about 1 (Field, 1987), and
    1.2 gives the bits a pixel that photos have at this quality. Colours vary less than brightness.
    """
    rng = np.random.default_rng(SEED)
    frequency = np.hypot(np.fft.fftfreq(HEIGHT)[:, None], np.fft.rfftfreq(WIDTH)[None])
    frequency[0, 0] = np.inf

    def plane(deviation: float) -> Image.Image:
        spectrum = np.exp(2j * np.pi * rng.random(frequency.shape)) / frequency**1.2
        values = np.fft.irfft2(spectrum, (HEIGHT, WIDTH))
        return Image.fromarray(np.clip(128 + values / values.std() * deviation, 0, 255).astype(np.uint8))

    files = []
    for _ in range(count):
        file = BytesIO()
        Image.merge("YCbCr", [plane(50.0), plane(12.5), plane(12.5)]).save(file, "JPEG", quality=QUALITY)
        files.append(file.getvalue())
    return files


def _by_pillow(file: bytes) -> None:
    with Image.open(BytesIO(file)) as image:
        image.convert("RGB")


def _per_core(decode: Callable[[bytes], object], files: Sequence[bytes]) -> float:
    """Images per second of the thread's own processor time, so that others' load doesn't count."""
    for file in files:
        decode(file)
    done, begin = 0, time.thread_time()
    while (spent := time.thread_time() - begin) < SECONDS:
        for file in files:
            decode(file)
        done += len(files)
    return done / spent


def _native(files: Sequence[bytes], cores: int) -> NativeDecoding:
    own = ffi.decoder_names()[0]

    def decode(file: bytes) -> npt.NDArray[np.uint8]:
        return ffi.image_decode(file, own, (0, 0, WIDTH, HEIGHT))

    return NativeDecoding(
        per_core=_per_core(decode, files),
        together=_together(decode, files, cores),
        simd=ffi.simd_names(),
        simd_active=ffi.simd_active(),
        libjpeg_turbo=ffi.build_info()["libjpeg_turbo"],
    )


def _together(decode: Callable[[bytes], object], files: Sequence[bytes], cores: int) -> float:
    """Images per second of wall time by threads on all cores: decoding releases the GIL."""
    end = time.perf_counter() + SECONDS

    def work(first: int) -> int:
        done = 0
        while time.perf_counter() < end:
            decode(files[(first + done) % len(files)])
            done += 1
        return done

    begin = time.perf_counter()
    with ThreadPoolExecutor(cores) as pool:
        done = sum(pool.map(work, range(cores)))
    return done / (time.perf_counter() - begin)
