"""How fast this machine's cores decode JPEGs: by Pillow, and by the native library beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image, features

from headrace._native import ffi
from headrace.errors import NativeError

# ImageNet's commonest size.
WIDTH, HEIGHT = 500, 375
# One image again and again is decoded a quarter faster than photos are: branch prediction learns it by
# heart. With 24 different ones, pixels per second are within 5 % of those of 150 photos (Zen 4).
PICTURES = 24
QUALITY = 88
SECONDS = 0.3
SEED = 0


@dataclass(frozen=True)
class NativeDecoding:
    """The native library's rates, in images per second.

    Attributes:
        per_core: on one core.
        together: on all cores that may be used, at once.
        simd: instruction sets that this processor and the library's build both have.
        simd_active: the one in use.
        libjpeg_turbo: the version that it decodes with what its own decoder doesn't take.
    """

    per_core: float
    together: float
    simd: tuple[str, ...]
    simd_active: str
    libjpeg_turbo: str


@dataclass(frozen=True)
class Decoding:
    """What decoding costs here.

    Attributes:
        width, height: of the images, in pixels.
        image_bytes: of their files, on average.
        pillow_per_core: images per second by Pillow on one core.
        pillow_turbo: the version of libjpeg-turbo that Pillow has; None: it has another, slower libjpeg.
        native: None: see `native_missing`.
        native_missing: why the native library can't be used; "" where it can.
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
    files = pictures(PICTURES)
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


def pictures(count: int) -> list[bytes]:
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
        return ffi.jpeg_decode(file, own, (0, 0, WIDTH, HEIGHT))

    return NativeDecoding(
        per_core=_per_core(decode, files),
        together=_together(files, cores),
        simd=ffi.simd_names(),
        simd_active=ffi.simd_active(),
        libjpeg_turbo=ffi.build_info()["libjpeg_turbo"],
    )


def _together(files: Sequence[bytes], cores: int) -> float:
    """Images per second of wall time by native threads on all cores, two batches at a time."""
    pipeline = ffi.Pipeline(
        [],
        HEIGHT,
        WIDTH,
        dtype=0,
        nhwc=True,
        table=None,
        keep=None,
        decoders=(1 << len(ffi.decoder_names())) - 1,
        max_pixels=0,
        pillow_vertical_first=True,
    )
    source = ffi.Source.of_memory(files)
    indices = np.arange(max(len(files), 2 * cores), dtype=np.int64) % len(files)
    outputs = [np.empty((len(indices), HEIGHT, WIDTH, 3), np.uint8) for _ in range(2)]
    pool = ffi.Pool(cores, 0)
    try:

        def submit(output: npt.NDArray[np.uint8]) -> ffi.Batch:
            return pool.submit(pipeline, source, indices, seed=0, epoch=0, output=output.ctypes.data)

        for output in outputs:  # threads start, memory is touched
            _finish(submit(output))
        done, begin = 0, time.perf_counter()
        waiting = [(output, submit(output)) for output in outputs]
        while (spent := time.perf_counter() - begin) < SECONDS:
            output, batch = waiting.pop(0)
            _finish(batch)
            done += len(indices)
            waiting.append((output, submit(output)))
        for _, batch in waiting:
            _finish(batch)
    finally:
        pool.close()
    return done / spent


def _finish(batch: ffi.Batch) -> None:
    while not batch.wait(1000):
        pass
