"""Which stage of loading a thread is in, told from its stack and from what the system says that it does."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from os.path import basename
from typing import Literal, NamedTuple

# What a thread does, as the system has it: "running" on a core or waiting for one; blocked in a system call
# that reads, sleeps, takes a lock ("futex": a lock, the GIL, or other threads of a parallel region) or waits
# for something else; "blocked": asleep, and the system doesn't say in which call.
Blocked = Literal["running", "reading", "sleeping", "futex", "waiting", "blocked"]


class Frame(NamedTuple):
    """A frame of a Python stack.

    Attributes:
        filename, function, first_line: of its code.
        line: that it is at.
        owner: the class that the function is a method of; of nn.Module's own call, the module's class.
        container: it runs transforms one after the other, as Compose and Sequential do.
        source: the text of the line, needed of the innermost frame only, as calls into C have no frame.
    """

    filename: str
    function: str
    first_line: int
    line: int
    owner: str = ""
    container: bool = False
    source: str = ""


class Stage(NamedTuple):
    """What a thread is at.

    Attributes:
        kind: of thread: "fetch": it makes samples and batches; "step": the main thread outside the loader;
            "wait": one inside the loader's next() that waits for worker processes; "send": a feeder of a
            multiprocessing queue; "pin": the loader's pin thread; "other:NAME".
        key: of the stage. Of "fetch" and "other:…": "read", "decode", "transform:NAME", "collate",
            "dataset:FUNCTION (file.py:12)" (of "other:…": "code:…"), "idle", "start", "send". Of "wait":
            "wait", "receive", "index", "start", "stop", "pin", "next". Of "send": "send", "idle". Of "pin":
            "receive", "pin", "idle". Of "step": "step".
        waiting: it is blocked, not computing.
    """

    kind: str
    key: str
    waiting: bool


LIBRARIES = tuple(
    {
        *(sysconfig.get_paths()[name].rstrip("/") + "/" for name in ("stdlib", "platstdlib")),
        "<frozen",
        "/usr/lib/python3",
    }
)
OURS = "/headrace/measure/"
DATALOADERS = re.compile(r"/(torch/utils/data|torchdata/stateful_dataloader)/")
COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")

READING_FILES = re.compile(
    r"/(zipfile|tarfile|pathlib|gzip|bz2|lzma|_compression|shelve|mmap|tempfile|_pyio|socket|ssl)"
    r"(/\w+)*\.py$|/http/client\.py$"
    r"|/(h5py|lmdb|fsspec|s3fs|gcsfs|adlfs|boto3|botocore|s3torchconnector|obstore|urllib3|requests|aiohttp"
    r"|smart_open|safetensors|zarr|netCDF4|pyarrow|webdataset|streaming|msgpack)/"
    r"|/numpy/lib/(npyio|_npyio_impl|format|_format_impl|_datasource)\.py$|/torch/serialization\.py$"
)
READING_FUNCTION = re.compile(r"_*(p?read|open)(?![a-z])|_*read(into|lines?|all|exactly|bytes|file)")
READING_CALL = re.compile(
    r"(?<![\w.])(open|read)\(|\.(read|readinto|readline|readlines|read_bytes|read_text|pread|recv|getdents)\("
    r"|\b(np|numpy)\.(load|fromfile|memmap)\(|\bos\.(open|read|pread|stat|scandir|listdir|path\.\w+)\("
    r"|\btorch\.load\(|\bread_file\("
)
DECODING_FILES = re.compile(
    r"/PIL/(ImageFile|[A-Z]\w*ImagePlugin|ImageSequence)\.py$"
    r"|/torchvision/io/|/(imageio|simplejpeg|turbojpeg|torchcodec|soundfile|audioread|av|decord|pyvips"
    r"|rawpy|tifffile|imagecodecs|pydicom|nibabel|jpeg4py|accimage)(/|\.py$)"
    r"|/torchaudio/(_?backend/|io/|_torchcodec\.py|_extension/)"
)
DECODING_PILLOW = ("open", "preinit", "init")  # of PIL/Image.py; the same by anyone's call
CONVERTING_PILLOW = ("convert", "draft", "load", "tobytes")  # decoding, unless a transform calls them
DECODING_CALL = re.compile(
    r"\b(im|jpeg_|png_|webp_)?decode(_\w+)?\(|\bimread(multi)?\(|\bdecode_\w+\(|\bread_image\(|\.imdecode\("
)
TRANSFORM_FILES = re.compile(
    r"/(torchvision/(transforms|prototype/transforms)|albumentations/|albucore/|kornia/(augmentation|geometry"
    r"|enhance|filters|color)|torchaudio/(transforms|functional)|monai/transforms|audiomentations/|imgaug/"
    r"|torch_audiomentations/|imagecorruptions/)"
)
CALLING_SHIMS = ("_call_impl", "_wrapped_call_impl")  # of nn.Module, between a container and what it runs

LOCKING_FILES = re.compile(
    r"/(threading|queue|selectors|subprocess|socketserver|concurrent/futures/\w+|asyncio/\w+"
    r"|multiprocessing/(synchronize|connection|popen_\w+|pool))\.py$"
)
LOCKING_CALL = re.compile(
    r"\.(acquire|wait|join|result|get|put|recv|poll|select|sleep)\(|\bsleep\(|\bwith .*lock|\bn?wait\("
)


@lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """The file is neither of Python, nor of an installed package, nor of the sampler."""
    if "/site-packages/" in filename or "/dist-packages/" in filename or OURS in filename:
        return False
    return not filename.startswith(LIBRARIES)


def place(frame: Frame) -> str:
    """The frame's function, as "name (file.py:12)"."""
    return f"{frame.function} ({basename(frame.filename)}:{frame.first_line})"


def innermost_users(stack: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's code; None if there is none."""
    return next((frame for frame in reversed(stack) if is_users(frame.filename)), None)


def classify(stack: Sequence[Frame], blocked: Blocked, thread: str) -> Stage | None:
    """What a thread is at.

    Args:
        stack: its frames, outermost first.
        blocked: what the system says that it does.
        thread: its name, without its number in a pool; "" for the main thread.

    Returns:
        None for an empty stack.
    """
    if not stack:
        return None
    waiting = is_waiting(stack[-1], blocked)
    # A forked worker's stack begins with what its parent was at.
    loops = [depth for depth, frame in enumerate(stack) if anchor(frame) == "worker"]
    stack = stack[loops[-1] :] if loops else stack
    for depth, frame in enumerate(stack):
        kind = anchor(frame)
        if kind == "fetch":
            return Stage("fetch", _fetching(stack[depth:], blocked), waiting)
        if kind == "worker":
            return _of_worker(stack[depth:], blocked, waiting)
        if kind == "send":
            return Stage("send", "idle" if waiting and _waits_in_line(stack) else "send", waiting)
        if kind == "pin":
            return Stage("pin", _pinning(stack[depth:], waiting), waiting)
        if kind == "loader":
            return _of_loader(stack[depth:], blocked, waiting)
    if not thread:
        return Stage("step", "step", waiting)
    key = "idle" if waiting else _working(stack, blocked).replace("dataset:", "code:")
    return Stage(f"other:{thread}", key, waiting)


def is_waiting(innermost: Frame, blocked: Blocked) -> bool:
    """The thread is blocked, and not for the GIL or for its own helpers in a parallel region."""
    if blocked in ("futex", "blocked"):
        return bool(LOCKING_FILES.search(innermost.filename) or LOCKING_CALL.search(innermost.source))
    return blocked != "running"


def anchor(frame: Frame) -> str:
    """What a frame alone says about its thread: a key of the frames that loaders consist of, or ""."""
    filename, function = frame.filename, frame.function
    if filename.endswith("/multiprocessing/queues.py") and function == "_feed":
        return "send"
    if OURS in filename and function == "sampled_worker_loop":
        return "worker"
    if not DATALOADERS.search(filename):
        return ""
    if filename.endswith("/fetch.py"):
        return "fetch" if function == "fetch" else ""
    if filename.endswith("/worker.py"):
        return "worker" if function == "_worker_loop" else ""
    if filename.endswith("/pin_memory.py"):
        return "pin" if function == "_pin_memory_loop" else ""
    return "loader" if "dataloader" in basename(filename) else ""


def _of_worker(stack: Sequence[Frame], blocked: Blocked, waiting: bool) -> Stage:
    """From _worker_loop inwards: what isn't fetch() is the wait for indices, or the start."""
    for depth, frame in enumerate(stack[1:], 1):
        if anchor(frame) == "fetch":
            return Stage("fetch", _fetching(stack[depth:], blocked), waiting)
        if frame.filename.endswith("/multiprocessing/queues.py"):
            return Stage("fetch", "idle" if frame.function == "get" else "send", waiting)
    started = len(stack) == 1 and stack[0].function == "_worker_loop"
    return Stage("fetch", "idle" if started else "start", waiting)


def _of_loader(stack: Sequence[Frame], blocked: Blocked, waiting: bool) -> Stage:
    """From the DataLoader's first frame inwards, in the thread that iterates over it."""
    for depth, frame in enumerate(stack):
        if anchor(frame) == "fetch":
            return Stage("fetch", _fetching(stack[depth:], blocked), waiting)
        if frame.function in ("_shutdown_workers", "__del__", "_mark_worker_as_unavailable"):
            return Stage("wait", "stop", waiting)
        if frame.function == "_next_index":
            return Stage("wait", "index", waiting)
        if frame.function == "_try_get_data":
            return Stage("wait", "wait" if waiting and _waits_in_line(stack) else "receive", waiting)
        if frame.filename.endswith("/pin_memory.py"):
            return Stage("wait", "pin", waiting)
    starting = any(frame.function in ("__iter__", "_get_iterator", "__init__", "_reset") for frame in stack)
    return Stage("wait", "start" if starting else "next", waiting)


def _pinning(stack: Sequence[Frame], waiting: bool) -> str:
    if any(frame.function == "pin_memory" for frame in stack):
        return "pin"
    return "idle" if waiting and _waits_in_line(stack) else "receive"


def _waits_in_line(stack: Sequence[Frame]) -> bool:
    """Blocked for something to come into a queue, rather than while it is read or written."""
    innermost = stack[-1]
    if innermost.filename.endswith("/multiprocessing/connection.py"):
        return innermost.function in ("wait", "poll", "_poll")
    return bool(LOCKING_FILES.search(innermost.filename) or LOCKING_CALL.search(innermost.source))


def _fetching(stack: Sequence[Frame], blocked: Blocked) -> str:
    """From fetch() inwards."""
    inner = [frame for frame in stack[1:] if frame.function not in COMPREHENSIONS]
    collating = any(OURS in frame.filename and frame.function == "__call__" for frame in inner)
    if collating or "collate_fn(" in stack[0].source:
        return "collate"
    return _working(inner, blocked)


def _working(stack: Sequence[Frame], blocked: Blocked) -> str:
    """The stage of a stack that makes a sample: the innermost of its frames that tells."""
    if blocked == "reading":
        return "read"
    transform = _transform(stack)
    for depth in range(len(stack) - 1, -1, -1):
        if transform is not None and depth <= transform[0]:
            return f"transform:{transform[1]}"
        key = _labelled(stack[depth], depth == len(stack) - 1, transform is not None)
        if key:
            return key
    user = innermost_users([frame for frame in stack if not frame.function.startswith("<")])
    user = user or innermost_users(stack)
    beneath = user or next((frame for frame in stack if OURS not in frame.filename), None)
    return f"dataset:{place(beneath)}" if beneath else "dataset:__getitem__"


def _labelled(frame: Frame, innermost: bool, transformed: bool) -> str:
    """ "read" or "decode", where the frame says so; else ""."""
    if innermost and DECODING_CALL.search(frame.source):
        return "decode"
    if innermost and READING_CALL.search(frame.source):
        return "read"
    if frame.filename.endswith("/torchvision/io/image.py") and frame.function == "read_file":
        return "read"
    if DECODING_FILES.search(frame.filename):
        return "decode"
    if frame.filename.endswith("/PIL/Image.py"):
        decoding = frame.function in DECODING_PILLOW or (
            not transformed and frame.function in CONVERTING_PILLOW
        )
        return "decode" if decoding else ""
    if READING_FILES.search(frame.filename):
        return "read"
    return "read" if READING_FUNCTION.match(frame.function) and OURS not in frame.filename else ""


def _transform(stack: Sequence[Frame]) -> tuple[int, str] | None:
    """Where in the stack a transform begins, and its name; None if none runs."""
    for depth, frame in enumerate(stack):
        if frame.container:
            return _contained(stack, depth)
        if TRANSFORM_FILES.search(frame.filename):
            module = _module(stack[max(0, depth - 2) : depth])
            return depth, module or frame.owner or frame.function
    return None


def _contained(stack: Sequence[Frame], depth: int) -> tuple[int, str]:
    """What the container at `depth` runs; of a container in a container, what that runs."""
    following = depth + 1
    while following < len(stack) and _calls_module(stack[following]):
        following += 1
    module = _module(stack[depth + 1 : following])
    if following == len(stack):
        return depth, module or stack[depth].owner or stack[depth].function
    frame = stack[following]
    if frame.container:
        return _contained(stack, following)
    return depth, module or frame.owner or place(frame)


def _calls_module(frame: Frame) -> bool:
    return frame.filename.endswith("/torch/nn/modules/module.py") and frame.function in CALLING_SHIMS


def _module(shims: Sequence[Frame]) -> str:
    """The class of the module that is called by these frames; "" if none is."""
    return next((frame.owner for frame in shims if frame.function == "_wrapped_call_impl"), "")
