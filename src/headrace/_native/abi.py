"""The native library's structs, constants and functions, as native/include/headrace.h declares them.

Field by field and argument by argument: a test compares both with the header.
"""

from __future__ import annotations

from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

import numpy as np

ABI_VERSION = 18
STAGES = 5
DECODERS = 8
PARAMS = 24
DRAWS = 32

OK = 0
UNSUPPORTED = 4
CORRUPT = 5
TOO_LARGE = 6
TIMEOUT = 8


class Op(Structure):
    """hr_op: a transform, and how many of the ops after it are inside of it."""

    _fields_ = (
        ("id", c_int32),
        ("inside", c_int32),
        ("params", c_double * PARAMS),
        ("data", POINTER(c_float)),
        ("data_count", c_int64),
    )


class Draw(Structure):
    """hr_draw: what was drawn for one op."""

    _fields_ = (("value", c_double * DRAWS),)


class Pipeline(Structure):
    _fields_ = (
        ("ops", POINTER(Op)),
        ("op_count", c_int32),
        ("height", c_int32),
        ("width", c_int32),
        ("dtype", c_int32),
        ("layout", c_int32),
        ("pillow_vertical_first", c_int32),
        ("decoders", c_uint32),
        ("channels", c_int32),
        ("gray", c_int32),
        ("upright", c_int32),
        ("views", c_int32),
        ("opaque", c_int32),
        ("max_pixels", c_int64),
        ("table", c_void_p),
    )


class Source(Structure):
    _fields_ = (
        ("count", c_int64),
        ("paths", c_void_p),
        ("path_offsets", c_void_p),
        ("data", c_void_p),
        ("sizes", c_void_p),
        ("begins", c_void_p),
        ("shards", c_void_p),
        ("path_count", c_int64),
        ("entries", c_void_p),
        ("entries_size", c_uint64),
        ("entry_begins", c_void_p),
        ("entry_ends", c_void_p),
        ("entry_mtimes", c_void_p),
        ("height", c_int32),
        ("width", c_int32),
        ("row_stride", c_int64),
        ("column_stride", c_int64),
        ("channel_stride", c_int64),
    )


class Request(Structure):
    _fields_ = (
        ("pipeline", POINTER(Pipeline)),
        ("source", POINTER(Source)),
        ("indices", c_void_p),
        ("occurrences", c_void_p),
        ("count", c_int64),
        ("seed", c_uint64),
        ("epoch", c_uint64),
        ("output", c_void_p),
        ("statuses", c_void_p),
    )


class Stats(Structure):
    _fields_ = (
        ("samples", c_int64),
        ("failed", c_int64),
        ("bytes_read", c_int64),
        ("pixels_decoded", c_int64),
        ("stale_entries", c_int64),
        ("nanoseconds", c_int64 * STAGES),
        ("decoded_by", c_int64 * DECODERS),
        ("decode_threads", c_int32),
        ("read_threads", c_int32),
    )


class RenderJob(Structure):
    """hr_render_job: boxes are x, y, width, height."""

    _fields_ = (
        ("crop", c_int32 * 4),
        ("width", c_int32),
        ("height", c_int32),
        ("filter", c_int32),
        ("window", c_int32 * 4),
        ("flip_x", c_int32),
        ("flip_y", c_int32),
        ("pillow_vertical_first", c_int32),
        ("decoders", c_uint32),
        ("code", c_int32),
        ("pipeline", POINTER(Pipeline)),
        ("draws", c_void_p),
        ("output", c_void_p),
    )


class ImageFacts(Structure):
    """hr_image_facts."""

    _fields_ = (
        ("checksum", c_uint32),
        ("width", c_int32),
        ("height", c_int32),
        ("entries_end", c_uint64),
    )


# Never a code of the library's: what a status holds until the sample is dealt with.
UNDECIDED = -1

# hr_status, as an array that numpy reads.
STATUS = np.dtype(
    [("code", "i4"), ("sys_errno", "i4"), ("decoder", "i4"), ("width", "i4"), ("height", "i4")], align=True
)

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "hr_abi_version": (c_int32, ()),
    "hr_build_info": (c_char_p, ()),
    "hr_last_error": (c_char_p, ()),
    "hr_describe": (c_char_p, (c_int32,)),
    "hr_stage_name": (c_char_p, (c_int32,)),
    "hr_decoder_name": (c_char_p, (c_int32,)),
    "hr_simd_name": (c_char_p, (c_int32,)),
    "hr_simd_available": (c_int32, (c_int32,)),
    "hr_simd_active": (c_int32, ()),
    "hr_simd_force": (c_int32, (c_int32,)),
    "hr_pool_create": (c_int32, (c_int32, c_int32, POINTER(c_void_p))),
    "hr_pool_use": (c_int32, (c_void_p, c_int32, c_int32)),
    "hr_pool_destroy": (None, (c_void_p,)),
    "hr_pool_stats": (c_int32, (c_void_p, POINTER(Stats))),
    "hr_batch_submit": (c_int32, (c_void_p, POINTER(Request), POINTER(c_void_p))),
    "hr_batch_wait": (c_int32, (c_void_p, c_int32)),
    "hr_batch_cancel": (c_int32, (c_void_p,)),
    "hr_batch_free": (None, (c_void_p,)),
    "hr_op_id": (c_int32, (c_char_p,)),
    "hr_op_name": (c_char_p, (c_int32,)),
    "hr_draw_ops": (
        c_int32,
        (
            POINTER(Pipeline),
            c_uint64,
            c_uint64,
            c_int64,
            c_int64,
            c_int32,
            c_int32,
            c_void_p,
            POINTER(c_int32),
        ),
    ),
    "hr_apply_ops": (c_int32, (POINTER(Pipeline), c_void_p, c_void_p, c_int32, c_int32, c_void_p)),
    "hr_look_up": (c_int32, (POINTER(Pipeline), c_void_p, c_int64, c_void_p)),
    "hr_index_images": (
        c_int32,
        (c_void_p, c_void_p, c_int64, c_int32, POINTER(ImageFacts), c_void_p, c_uint64),
    ),
    "hr_jpeg_transcode": (
        c_int32,
        (c_void_p, c_uint64, c_int32, c_int32, c_int32, c_void_p, c_uint64, POINTER(c_uint64)),
    ),
    "hr_image_check": (c_int32, (c_void_p, c_uint64)),
    "hr_image_render": (c_int32, (c_void_p, c_uint64, POINTER(RenderJob), c_int32)),
    "hr_pixels_size": (c_uint64, (c_int32, c_int32)),
    "hr_pixels_decode": (c_int32, (c_void_p, c_uint64, c_uint32, c_void_p, c_int32, c_int32)),
    "hr_pixels_render": (c_int32, (c_void_p, c_int32, c_int32, POINTER(RenderJob), c_int32)),
    "hr_image_decode": (
        c_int32,
        (
            c_int32,
            c_void_p,
            c_uint64,
            c_void_p,
            c_uint64,
            c_int32,
            c_int32,
            c_int32,
            c_int32,
            POINTER(c_uint8),
        ),
    ),
}
