"""Calls into the native library. Nothing is loaded before the first call of `library()`."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_uint64, c_void_p, cast
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace._native import abi
from headrace.errors import NativeError
from headrace.records import EntryPoints, Extents, NativeStats, SampleKey

FILE_NAME = "libheadrace.so"

# Bytes that native code may read past the end of data in memory: Buffer::kPadding.
PADDING = 256

# How long the finalizer of an unfinished batch waits for samples that are being made, in milliseconds.
PATIENCE_MS = 100

# Batches that were still unfinished then. They are kept until the process ends, as threads may still write to
# their memory.
_unfinished: list[Batch] = []


# Without a lock: a finalizer that closes a pool may run in the middle of a call, in the same thread, and
# would wait for itself. Threads that make the first call at the same time may each load the library.
@cache
def library() -> Any:
    """The loaded library, its signatures declared. Raises NativeError if it is missing, can't be loaded, or
    was built from other sources than this package."""
    path = _find()
    try:
        lib: Any = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(
            f"The native library {path} can't be loaded: {error}. Likely causes: a shared library is"
            " missing (Debian, Ubuntu: apt-get install libjpeg62-turbo or libjpeg-turbo8, libdeflate0,"
            " libwebp7, libwebpdemux2), or the package was built on another kind of machine. Reinstall it:"
            " pip install --force-reinstall --no-cache-dir headrace."
        ) from error
    version = lib.hr_abi_version()
    if version != abi.ABI_VERSION:
        raise NativeError(
            f"The native library {path} and the Python files in {Path(__file__).parents[1]} are of different"
            f" builds (interface {version} and {abi.ABI_VERSION}): reinstall headrace (in a clone:"
            " pip install ./packages/headrace)."
        )
    for name, (restype, argtypes) in abi.FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype = restype
        function.argtypes = argtypes
    return lib


def _find() -> Path:
    beside = Path(__file__).with_name(FILE_NAME)
    tried = [beside]
    # An editable install keeps the Python files in the source tree and the built library in site-packages; in
    # a source tree that isn't installed, the first candidate must serve.
    with suppress(metadata.PackageNotFoundError):
        installed = () if beside.is_file() else metadata.files("headrace") or ()
        tried += [Path(str(file.locate())) for file in installed if file.name == FILE_NAME]
    for path in tried:
        if path.is_file():
            return path
    listed = ", ".join(str(path) for path in tried)
    raise NativeError(
        f"The native library isn't there; looked for {listed}. Install the package (pip install"
        " ./packages/headrace) instead of running from a source tree that hasn't been built."
    )


def check(code: int) -> None:
    """Raises NativeError for every code but OK."""
    if code != abi.OK:
        text = library().hr_last_error().decode("utf-8", "replace")
        raise NativeError(f"{text} (code {code})", code)


def _names(function: str) -> tuple[str, ...]:
    names: list[str] = []
    while (name := getattr(library(), function)(len(names))) is not None:
        names.append(name.decode())
    return tuple(names)


def stage_names() -> tuple[str, ...]:
    """Stages of a sample, in order; the order of `NativeStats.nanoseconds`."""
    return _names("hr_stage_name")


@cache
def decoder_names() -> tuple[str, ...]:
    """Decoders of all formats, in order of preference."""
    return _names("hr_decoder_name")


def simd_names() -> tuple[str, ...]:
    """Instruction sets that this processor and this build have."""
    return tuple(n for i, n in enumerate(_names("hr_simd_name")) if library().hr_simd_available(i))


def simd_active() -> str:
    """The instruction set in use."""
    active: int = library().hr_simd_active()
    return _names("hr_simd_name")[active]


def simd_force(name: str | None) -> None:
    """Makes all kernels use the instruction set `name`, or the best one again if it is None. For tests."""
    check(library().hr_simd_force(-1 if name is None else _names("hr_simd_name").index(name)))


def build_info() -> dict[str, str]:
    """Version and compiler of the library, and versions of the libraries that decode for it, by name."""
    info: dict[str, str] = json.loads(library().hr_build_info())
    return info


def op_names() -> tuple[str, ...]:
    """Ops that native code knows."""
    return _names("hr_op_name")


@cache
def _op_id(name: str) -> int:
    number: int = library().hr_op_id(name.encode())
    if number < 0:
        raise NativeError(f"The native library has no op {name!r}: reinstall headrace.")
    return number


def op(
    name: str, params: Sequence[float], inside: int = 0, data: npt.NDArray[np.float32] | None = None
) -> abi.Op:
    """An op by its name, with a copy of `data`; `inside`: so many of the ops after it are inside of it."""
    if data is None:
        return abi.Op(_op_id(name), inside, tuple(params))
    kept = (c_float * data.size).from_buffer_copy(data.astype(np.float32).tobytes())
    return abi.Op(_op_id(name), inside, tuple(params), cast(kept, POINTER(c_float)), data.size)


@dataclass(frozen=True)
class Drawn:
    """Numbers that were drawn for an image, float64 [ops, abi.DRAWS], and the size of the result."""

    values: npt.NDArray[np.float64]
    width: int
    height: int


class Pipeline:
    """The steps for every sample: hr_pipeline and the memory that it points to.

    Args:
        ops: at most 64, in order.
        height, width: of the outputs, in pixels.
        dtype: 0 uint8, 1 float16, 2 bfloat16, 3 float32.
        nhwc: channels last in memory.
        table: address of [channels, 256] values of dtype, or None; `keep` is held so that it stays valid.
        decoders: bit i allows decoder i.
        max_pixels: larger images are left to the caller; 0 is no limit.
        pillow_vertical_first: resize as Pillow 13 does.
        channels: 3, or 1 for the first of three equal ones.
        gray: files are decoded as ``convert("L")`` gives them, three times.
        upright: files are turned as `PIL.ImageOps.exif_transpose` does, before all ops.
    """

    def __init__(
        self,
        ops: Sequence[abi.Op],
        height: int,
        width: int,
        *,
        dtype: int = 0,
        nhwc: bool = True,
        table: int | None = None,
        keep: object = None,
        decoders: int = 0,
        max_pixels: int = 0,
        pillow_vertical_first: bool = False,
        channels: int = 3,
        gray: bool = False,
        upright: bool = False,
    ) -> None:
        self._given = list(ops)  # they keep their data
        self._ops = (abi.Op * max(1, len(ops)))(*ops)
        self._keep = keep
        self.struct = abi.Pipeline(
            *(self._ops, len(ops), height, width, dtype, nhwc, pillow_vertical_first),
            *(decoders, channels, gray, upright, 1, max_pixels, table),
        )
        self.pointer = ctypes.pointer(self.struct)

    def draw(self, key: SampleKey, width: int, height: int) -> Drawn | None:
        """Draws for the sample of `key`, of width × height pixels; returns None if torchvision raises an
        error for an image of that size."""
        values = np.zeros((self.struct.op_count, abi.DRAWS))
        size = (c_int32 * 2)()
        code = library().hr_draw_ops(byref(self.struct), *key, width, height, values.ctypes.data, size)
        if code == abi.UNSUPPORTED:
            return None
        check(code)
        return Drawn(values, size[0], size[1])

    def apply(self, rgb: npt.NDArray[np.uint8], draws: npt.NDArray[np.float64], output: int) -> bool:
        """Puts an image, uint8 [height, width, 3], through the pipeline to the address `output`, with draws
        as `draw` gives them. Returns False if native code leaves that to torchvision."""
        rgb, draws = np.ascontiguousarray(rgb), np.ascontiguousarray(draws, np.float64)
        if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3:
            raise ValueError(f"an image must be uint8 [height, width, 3], not {rgb.dtype} {list(rgb.shape)}")
        if draws.shape != (self.struct.op_count, abi.DRAWS):
            raise ValueError(f"draws must be [{self.struct.op_count}, {abi.DRAWS}], not {list(draws.shape)}")
        height, width, _ = rgb.shape
        code = library().hr_apply_ops(
            byref(self.struct), draws.ctypes.data, rgb.ctypes.data, width, height, output
        )
        if code == abi.UNSUPPORTED:
            return False
        check(code)
        return True


class Source:
    """Places of the samples' bytes: hr_source and the memory that it points to."""

    def __init__(self, struct: abi.Source, keep: object, entries: EntryPoints | None = None) -> None:
        self.struct = struct
        self._keep = keep, entries
        if entries is not None:
            struct.entries, struct.entries_size = entries.data.ctypes.data, entries.data.nbytes
            struct.entry_begins = entries.begins.ctypes.data
            struct.entry_ends = entries.ends.ctypes.data
            struct.entry_mtimes = None if entries.mtimes is None else entries.mtimes.ctypes.data

    @classmethod
    def of_paths(
        cls, paths: npt.NDArray[np.uint8], offsets: npt.NDArray[np.uint64], entries: EntryPoints | None = None
    ) -> Source:
        """Files: zero-terminated paths in one buffer, path i at offsets[i]; n + 1 offsets for n files."""
        struct = abi.Source(count=len(offsets) - 1, paths=paths.ctypes.data, path_offsets=offsets.ctypes.data)
        return cls(struct, (paths, offsets), entries)

    @classmethod
    def of_extents(
        cls,
        paths: npt.NDArray[np.uint8],
        offsets: npt.NDArray[np.uint64],
        extents: Extents,
        entries: EntryPoints | None = None,
    ) -> Source:
        """Parts of files; paths and offsets as for `of_paths`."""
        struct = abi.Source(
            count=len(extents.begins),
            paths=paths.ctypes.data,
            path_offsets=offsets.ctypes.data,
            path_count=len(offsets) - 1,
            shards=extents.shards.ctypes.data,
            begins=extents.begins.ctypes.data,
            sizes=extents.sizes.ctypes.data,
        )
        return cls(struct, (paths, offsets, extents), entries)

    @classmethod
    def of_pixels(cls, images: npt.NDArray[np.uint8], rows: npt.NDArray[np.int64]) -> Source:
        """Decoded images: sample i is images[rows[i]], uint8 [height, width, 3] with any strides. They aren't
        copied: what is written to `images` changes later samples."""
        _, height, width, channels = images.shape
        if images.dtype != np.uint8 or channels != 3:
            raise ValueError(f"images must be uint8 [n, height, width, 3], not {images.dtype} {images.shape}")
        image, row, column, channel = images.strides
        addresses = images.ctypes.data + image * rows
        struct = abi.Source(
            count=len(rows),
            data=addresses.ctypes.data,
            height=height,
            width=width,
            row_stride=row,
            column_stride=column,
            channel_stride=channel,
        )
        return cls(struct, (images, addresses))


class Pool:
    """Decode threads, and reader threads that start once reads are measured to block, `read_threads` at most.
    With 0 decode threads, whoever waits for a batch does the work."""

    def __init__(self, decode_threads: int, read_threads: int) -> None:
        self._handle = c_void_p()
        check(library().hr_pool_create(decode_threads, read_threads, byref(self._handle)))

    def submit(
        self,
        pipeline: Pipeline,
        source: Source,
        indices: npt.NDArray[np.int64],
        occurrences: npt.NDArray[np.int64] | None = None,
        *,
        seed: int,
        epoch: int,
        output: int,
        keep: object = None,
    ) -> Batch:
        """Starts a batch: len(indices) samples one after the other from the address `output`. `occurrences`
        are numbers of earlier occurrences of the indices in the epoch; all 0 by default. `keep` owns
        the memory at `output`: it is kept alive until the batch is done."""
        statuses = np.zeros(len(indices), abi.STATUS)
        statuses["code"] = abi.UNDECIDED
        request = abi.Request(
            pipeline=ctypes.pointer(pipeline.struct),
            source=ctypes.pointer(source.struct),
            indices=indices.ctypes.data,
            occurrences=None if occurrences is None else occurrences.ctypes.data,
            count=len(indices),
            seed=seed,
            epoch=epoch,
            output=output,
            statuses=statuses.ctypes.data,
        )
        batch = Batch(c_void_p(), statuses, (pipeline, source, indices, occurrences, keep))
        check(library().hr_batch_submit(self._handle, byref(request), byref(batch._handle)))
        return batch

    def use(self, decode_threads: int, read_threads: int) -> None:
        """Changes the numbers of threads while they work; not of a pool made without decode threads."""
        check(library().hr_pool_use(self._handle, decode_threads, read_threads))

    def stats(self) -> NativeStats:
        """Totals since the pool was made."""
        raw = abi.Stats()
        check(library().hr_pool_stats(self._handle, byref(raw)))
        return NativeStats(
            samples=raw.samples,
            failed=raw.failed,
            bytes_read=raw.bytes_read,
            pixels_decoded=raw.pixels_decoded,
            stale_entries=raw.stale_entries,
            nanoseconds=dict(zip(stage_names(), raw.nanoseconds, strict=False)),
            decoded_by=dict(zip(decoder_names(), raw.decoded_by, strict=False)),
            decode_threads=raw.decode_threads,
            read_threads=raw.read_threads,
        )

    def close(self) -> None:
        """Cancels what is left and ends the threads; does nothing the second time."""
        handle, self._handle = self._handle, c_void_p()
        if handle:
            library().hr_pool_destroy(handle)


@dataclass(eq=False)
class Batch:
    """A batch on its way. Once `wait()` has returned True, `statuses`, [n] of `abi.STATUS`, say what became
    of each sample."""

    _handle: c_void_p
    statuses: npt.NDArray[np.void]
    _keep: object = field(repr=False)
    _pid: int = field(default_factory=os.getpid)

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # KeyboardInterrupt may drop the last reference to a batch while native threads write to its memory.
        if not _is_finalizing() and getattr(self, "_handle", None) and self._pid == os.getpid():
            _unfinished.append(self)
            self.cancel()
            if self.wait(PATIENCE_MS):
                _unfinished.remove(self)

    def wait(self, timeout_ms: int) -> bool:
        """Waits at most `timeout_ms` for the batch. Returns True if all samples are dealt with."""
        if not self._handle:
            return True
        code = library().hr_batch_wait(self._handle, timeout_ms)
        if code == abi.TIMEOUT:
            return False
        check(code)
        handle, self._handle = self._handle, c_void_p()
        library().hr_batch_free(handle)
        return True

    def cancel(self) -> None:
        """Samples that weren't started become CANCELLED; others are completed."""
        if self._handle:
            check(library().hr_batch_cancel(self._handle))

    def undecided(self) -> npt.NDArray[np.intp]:
        """Positions of samples that nothing has become of yet."""
        return np.flatnonzero(self.statuses["code"] == abi.UNDECIDED)


class ImageFacts(NamedTuple):
    """Facts of an image file that the index of a pack holds.

    Attributes:
        checksum: CRC-32 of the file, as zlib's.
        width, height: size in pixels; 0 if native code doesn't read such a file, or it is damaged.
        entries: packed entry points; empty if it needs none, or the own decoder doesn't take it.
    """

    checksum: int
    width: int
    height: int
    entries: bytes


def index_images(images: Sequence[bytes], every: int = 0) -> list[ImageFacts]:
    """The facts of image files, in one call, during which other Python threads run. `every`: MCUs between
    entry points; 0: the fewest, 4 at least, that keep a file's entry points within 2 % of its size."""
    facts = (abi.ImageFacts * len(images))()
    files, sizes = (c_char_p * len(images))(*images), (c_uint64 * len(images))(*map(len, images))
    entries = np.empty(sum(1024 + len(image) // 50 for image in images), np.uint8)
    while True:
        room = entries.ctypes.data, len(entries)
        code = library().hr_index_images(files, sizes, len(images), every, facts, *room)
        if code != abi.TOO_LARGE:  # never with `every` 0
            break
        entries = np.empty(4 * len(entries), np.uint8)
    check(code)
    begins = [0, *(each.entries_end for each in facts)]
    return [
        ImageFacts(each.checksum, each.width, each.height, entries[begin : each.entries_end].tobytes())
        for each, begin in zip(facts, begins, strict=False)
    ]


def image_size(data: bytes | npt.NDArray[np.uint8]) -> tuple[int, int]:
    """(width, height) of an image file. Raises NativeError if native code doesn't read it."""
    size = (c_int32 * 2)()
    place = data if isinstance(data, bytes) else data.ctypes.data
    check(library().hr_image_size(place, len(data), size))
    return size[0], size[1]


def jpeg_transcode(
    data: bytes, *, restart_interval: int = -1, optimize: bool = True, copy_markers: bool = True
) -> bytes:
    """The same image, coefficient for coefficient, as a baseline JPEG, without what follows the image's end.

    Args:
        data: the file: any JPEG that libjpeg reads without a warning.
        restart_interval: MCUs from one restart marker to the next, at most 65535; 0: no markers; -1: the
            largest number up to 4 that divides the MCUs of a row.
        optimize: Huffman tables made for this file; False: the standard ones, in less time.
        copy_markers: keep all APPn and COM segments (EXIF, ICC, comments); False: only JFIF and Adobe, which
            define what the colors mean.

    Raises:
        NativeError: damaged, cut short, or not a JPEG that libjpeg reads; restart_interval is out of range.
    """
    size = c_uint64(len(data) + len(data) // 2 + 1024)  # most need less
    while True:
        out = np.empty(size.value, np.uint8)
        flags = restart_interval, int(optimize), int(copy_markers)
        code = library().hr_jpeg_transcode(data, len(data), *flags, out.ctypes.data, len(out), byref(size))
        if code != abi.TOO_LARGE:
            break
    check(code)
    return out[: size.value].tobytes()


def image_decode(
    data: bytes, decoder: str, rect: tuple[int, int, int, int], entries: bytes = b""
) -> npt.NDArray[np.uint8]:
    """The pixels of `rect` (x, y, width, height) by one decoder: uint8 [height, width, 3]. Raises NativeError
    if the decoder refuses the file, or the rectangle leaves the image."""
    rgbx = np.empty((max(rect[3], 1), max(rect[2], 1), 4), np.uint8)
    padded = np.frombuffer(data + bytes(PADDING), np.uint8)
    index = np.frombuffer(entries + bytes(PADDING), np.uint8)
    file = padded.ctypes.data, len(data), index.ctypes.data if entries else None, len(entries)
    number = decoder_names().index(decoder)
    check(library().hr_image_decode(number, *file, *rect, rgbx.ctypes.data))
    return rgbx[:, :, :3]


def image_decodes(data: bytes) -> bool:
    """True if Pillow is certain to decode all of this file without an error; False for whatever is unusual.
    Of a WebP it is only known that it is complete."""
    return bool(library().hr_image_check(data, len(data)) == abi.OK)
