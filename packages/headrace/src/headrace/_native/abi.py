"""The native library's structs, constants and functions, as native/include/headrace.h declares them.

Field by field and argument by argument: a test compares both with the header.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

import numpy as np

ABI_VERSION = 25
STAGES = 5
DECODERS = 8
INFLATED = 1 << 30  # beside the decoders
LUMA = 1 << 29
PARAMS = 24
DRAWS = 32

OK = 0
UNSUPPORTED = 4
CORRUPT = 5
TOO_LARGE = 6
TIMEOUT = 8

# C's types by their names. Functions take pointers of any type, with None for NULL.
TYPES: dict[str, Any] = {
    "int32_t": c_int32,
    "uint32_t": c_uint32,
    "int64_t": c_int64,
    "uint64_t": c_uint64,
    "double": c_double,
    "char*": c_char_p,
    "float*": POINTER(c_float),
    "void*": c_void_p,
    "void": None,
}


def _fields(declarations: str) -> Iterator[tuple[str, Any]]:
    """The fields of a struct as C declares them, such as ``int32_t width, box[4]; void* data``."""
    for declaration in declarations.split(";"):
        kind, names = declaration.split(maxsplit=1)
        for name in names.split(","):
            field, _, count = name.strip().rstrip("]").partition("[")
            yield field, TYPES[kind] * int(count) if count else TYPES[kind]


class Op(Structure):
    """hr_op: a transform, and how many of the ops after it are inside of it."""

    _fields_ = (*_fields(f"int32_t id, inside; double params[{PARAMS}]; float* data; int64_t data_count"),)


class Draw(Structure):
    """hr_draw: what was drawn for one op."""

    _fields_ = (*_fields(f"double value[{DRAWS}]"),)


class Pipeline(Structure):
    _fields_ = (
        ("ops", POINTER(Op)),
        *_fields("int32_t op_count, height, width, dtype, layout, pillow_vertical_first; uint32_t decoders"),
        *_fields("int32_t channels, gray, upright, views; int64_t max_pixels; void* table"),
    )


class Source(Structure):
    _fields_ = (
        *_fields("int64_t count; void* paths, path_offsets, data, sizes, begins, shards; int64_t path_count"),
        *_fields("void* entries; uint64_t entries_size; void* entry_begins, entry_ends, entry_mtimes"),
        *_fields("int32_t height, width; int64_t row_stride, column_stride, channel_stride"),
    )


class Request(Structure):
    _fields_ = (
        ("pipeline", POINTER(Pipeline)),
        ("source", POINTER(Source)),
        *_fields("void* indices, occurrences; int64_t count; uint64_t seed, epoch; void* output, statuses"),
    )


class Stats(Structure):
    _fields_ = (
        *_fields("int64_t samples, failed, bytes_read, pixels_decoded, stale_entries"),
        *_fields(f"int64_t nanoseconds[{STAGES}], decoded_by[{DECODERS}]"),
        *_fields("int32_t decode_threads, read_threads"),
    )


class RenderJob(Structure):
    """hr_render_job: boxes are x, y, width, height."""

    _fields_ = (
        *_fields("int32_t crop[4], width, height, filter, window[4], flip_x, flip_y, pillow_vertical_first"),
        *_fields("uint32_t decoders; int32_t code, frame[2], patches[4]"),
        ("pipeline", POINTER(Pipeline)),
        *_fields("void* draws, output"),
    )


class ImageFacts(Structure):
    """hr_image_facts."""

    _fields_ = (*_fields("uint32_t checksum; int32_t width, height; uint64_t entries_end"),)


class ImageFill(Structure):
    """hr_image_fill."""

    _fields_ = (
        *_fields("void* data; uint64_t size; void* pixels; int32_t width, height"),
        ("job", RenderJob),
    )


class ImageList(Structure):
    """hr_image_list."""

    _fields_ = (*_fields("void* images, offsets; int32_t count, layout"),)


class DeferredCounts(Structure):
    """hr_deferred_counts."""

    _fields_ = (*_fields("int64_t live, faults, fills, filled_nbytes"),)


# Never a code of the library's: what a status holds until the sample is dealt with.
UNDECIDED = -1

# hr_status, as an array that numpy reads.
STATUS = np.dtype(
    [("code", "i4"), ("sys_errno", "i4"), ("decoder", "i4"), ("width", "i4"), ("height", "i4")], align=True
)

_DECLARATIONS = """
int32_t hr_abi_version()
char* hr_build_info()
char* hr_last_error()
char* hr_describe(int32_t)
char* hr_stage_name(int32_t)
char* hr_decoder_name(int32_t)
char* hr_simd_name(int32_t)
int32_t hr_simd_available(int32_t)
int32_t hr_simd_active()
int32_t hr_simd_force(int32_t)
int32_t hr_pool_create(int32_t, int32_t, void*)
int32_t hr_pool_use(void*, int32_t, int32_t)
void hr_pool_destroy(void*)
int32_t hr_pool_stats(void*, void*)
int32_t hr_batch_submit(void*, void*, void*)
int32_t hr_batch_wait(void*, int32_t)
int32_t hr_batch_cancel(void*)
void hr_batch_free(void*)
int32_t hr_op_id(char*)
char* hr_op_name(int32_t)
int32_t hr_draw_ops(void*, uint64_t, uint64_t, int64_t, int64_t, int32_t, int32_t, void*, void*)
int32_t hr_apply_ops(void*, void*, void*, int32_t, int32_t, void*)
int32_t hr_index_images(void*, void*, int64_t, int32_t, void*, void*, uint64_t)
int32_t hr_jpeg_transcode(void*, uint64_t, int32_t, int32_t, int32_t, void*, uint64_t, void*)
int32_t hr_image_size(void*, uint64_t, void*)
int32_t hr_image_check(void*, uint64_t)
int32_t hr_png_inflate(void*, uint64_t, void*, uint64_t, void*)
int32_t hr_image_render(void*, uint64_t, void*, int32_t)
uint64_t hr_pixels_size(int32_t, int32_t)
int32_t hr_pixels_decode(void*, uint64_t, uint32_t, void*, int32_t, int32_t)
int32_t hr_pixels_render(void*, int32_t, int32_t, void*, int32_t)
int32_t hr_deferred_start()
void* hr_deferred_take(uint64_t, void*, void*)
int32_t hr_deferred_state(void*)
void* hr_deferred_context(void*)
void hr_deferred_give_back(void*)
void hr_deferred_count(void*)
int32_t hr_image_fill_check(void*)
int32_t hr_fill_image(void*, void*, uint64_t)
int32_t hr_images_render(void*, void*, void*, int32_t)
int32_t hr_fill_images(void*, void*, uint64_t)
int32_t hr_image_decode(int32_t, void*, uint64_t, void*, uint64_t, int32_t, int32_t, int32_t, int32_t, void*)
"""


def _functions() -> Iterator[tuple[str, tuple[Any, tuple[Any, ...]]]]:
    """(name, (type of the result, types of the arguments)) of each function."""
    for declaration in _DECLARATIONS.strip().splitlines():
        signature, _, arguments = declaration.rstrip(")").partition("(")
        result, name = signature.split()
        kinds = arguments.split(", ") if arguments else []
        yield name, (TYPES[result], tuple(TYPES[kind] for kind in kinds))


# By name: type of the result, and those of the arguments.
FUNCTIONS = dict(_functions())
