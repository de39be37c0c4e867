"""Classifies stacks: which stage of loading a thread is in."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from os.path import basename
from types import CodeType, FrameType
from typing import NamedTuple


class Frame(NamedTuple):
    """A frame of a Python stack."""

    filename: str
    function: str
    first_line: int  # of the function
    line: int  # that is executed
    owner: str = ""  # class that the function is defined in, or "" for a plain function
    container: bool = False  # whether it calls transforms in turn, as Compose and Sequential do
    source: str = ""  # text of the line if it matters


# A frame's code, by its id, and the line: equal code objects may be of two files, and to hash them is costly.
Place = tuple[int, int]
_codes: dict[int, CodeType] = {}  # those that were seen, kept alive so that no others get their ids
SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Stage(NamedTuple):
    """The activity of a thread.

    Attributes:
        kind: kind of thread. "fetch": makes samples and batches; "step": the main thread outside the loader;
            "wait": a thread inside the loader's next(); "send": the feeder of a multiprocessing queue;
            "pin": the loader's pin thread; "other:NAME": any other.
        key: "read", "lock", "decode", "transform:NAME", "transform:" (calling transforms, as Compose does),
            "collate", "dataset:FUNCTION (file.py:12)" ("code:…" for "other:…"), "sampler:NAME", "send",
            "receive", "pin";
            "idle", "start" and "wait" are no work on samples. Of kind "step": a part of `STEP_PARTS`,
            "forward", "read-back", "step", or "code:FUNCTION (file.py:12)".
        waiting: whether the thread is blocked rather than computing.
    """

    kind: str
    key: str
    waiting: bool


LIBRARIES = (
    *(sysconfig.get_paths()[name].rstrip("/") + "/" for name in ("stdlib", "platstdlib")),
    "/usr/lib/python3",
    "<frozen",
    "<string>",  # code that a library has generated, such as that of a manager's proxies
)
OWN = "/headrace_doctor/measure/"
INSTALLED = ("/site-packages/", "/dist-packages/", OWN)


def _modules(names: str) -> str:
    """A pattern for files of these modules and packages."""
    return rf"/(?:{'|'.join(names.split())})(?:/.*|\.py):"


def _patterns(*rows: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), name) for pattern, name in rows)


TRANSFORMS = re.compile(
    _modules(
        "torchvision/transforms torchvision/prototype/transforms albumentations albucore kornia/augmentation"
        " kornia/geometry kornia/enhance kornia/filters kornia/color torchaudio/transforms"
        " torchaudio/functional monai/transforms audiomentations imgaug torch_audiomentations"
        " imagecorruptions"
    )
)
DECODERS = _modules(
    r"PIL/ImageFile PIL/\w+ImagePlugin PIL/ImageSequence torchvision/io imageio simplejpeg turbojpeg"
    " torchcodec soundfile audioread av decord pyvips rawpy tifffile imagecodecs pydicom nibabel jpeg4py"
    " accimage torchaudio/_?backend torchaudio/io torchaudio/_torchcodec torchaudio/_extension"
)
READERS = _modules(
    "zipfile tarfile pathlib gzip bz2 lzma _compression shelve mmap tempfile _pyio socket ssl http/client"
    " h5py lmdb fsspec s3fs gcsfs adlfs boto3 botocore s3torchconnector obstore urllib3 requests aiohttp"
    " smart_open safetensors zarr netCDF4 webdataset streaming msgpack torch/serialization"
    r" pyarrow/(?:parquet|dataset|feather|csv|json|orc|fs|ipc)"
    r" numpy/lib/_?npyio(?:_impl)? numpy/lib/_?format(?:_impl)? numpy/lib/_datasource"
)
# "FILE:FUNCTION" → stage; the first that matches counts.
FRAMES = _patterns(
    (r"/torchvision/io/image\.py:read_file$", "read"),
    (DECODERS, "decode"),
    (r"/PIL/Image\.py:(open|preinit|init)$", "decode"),
    (READERS, "read"),
    (r":_*((p?read|open)(?![a-z])|read(into|lines?|all|exactly|bytes|file))", "read"),
)
# Methods of a file: the only functions of the user's own that are known by their names.
FILE_METHODS = re.compile(r":(p?read|readinto|readlines?|readall)$")
# Decoding, unless a transform calls them.
CONVERTING = re.compile(r"/PIL/Image\.py:(convert|draft|load|tobytes)$")
# Calls into C have no frame: the text of the innermost line shows them.
DECODE_CALL = re.compile(
    r"\b(im|jpeg_|png_|webp_)decode\w*\(|\bdecode_\w+\(|\bimread(multi)?\(|\bread_image\(|\.imdecode\("
    r"|\bCAP_PROP_POS_|\.(grab|retrieve)\(\)"  # OpenCV's videos
)
READ_CALL = re.compile(
    r"(?<![\w.])(open|read)\(|\.(read|readinto|readline|readlines|read_bytes|read_text|pread|recv|getdents)\("
    r"|\b(np|numpy)\.(load|fromfile|memmap)\(|\bos\.(open|read|pread|stat|scandir|listdir|path\.\w+)\("
    r"|\btorch\.load\(|\bread_file\("
)
LOCK_CALL = re.compile(
    r"\.(acquire|wait|join|result|get|put|recv|poll|select|sleep)\(|\bsleep\(|\bwith .*lock|\bn?wait\("
)
LOCK_FILES = re.compile(
    _modules(
        r"threading queue selectors subprocess socketserver concurrent/futures asyncio"
        r" multiprocessing/(?:synchronize|connection|popen_\w+|pool)"
    )
)
# What a data loader consists of: "FILE:FUNCTION" → kind of thread.
LOADER = r"/(torch/utils/data|torchdata/stateful_dataloader)/(.*/)?"
ANCHORS = _patterns(
    (r"/multiprocessing/(queues\.py:_feed|resource_sharer\.py:_serve)$", "send"),
    (LOADER + r"fetch\.py:fetch$", "fetch"),
    (LOADER + r"worker\.py:_worker_loop$", "worker"),
    (LOADER + r"pin_memory\.py:_pin_memory_loop$", "pin"),
    (LOADER + r"\w*dataloader\w*\.py:", "loader"),
)
LOGGERS = _modules(
    "logging torch/utils/tensorboard tensorboard tensorboardX wandb mlflow clearml neptune aim comet_ml"
    " matplotlib loguru"
)
# Parts of the training step, by any frame of its stack: the first that matches counts.
STEP_PARTS = _patterns(
    # With CUDA graphs, compile_fx.py's run() wraps each call of what was compiled.
    (r"/torch/(_dynamo/convert_frame\.py:|_inductor/compile_fx\.py:(?!run$))", "compile"),
    (r"/torch/serialization\.py:_?(legacy_)?save$", "checkpoint"),
    (r"/torch/distributed/checkpoint/|/safetensors/", "checkpoint"),
    (r":_?(save|write)_\w*(checkpoint|model|state|weights)\w*$|:_?save_checkpoint", "checkpoint"),
    (LOGGERS, "logging"),
    (r"/torch/optim/", "optimizer"),
    (r"/torch/(autograd/__init__|_tensor)\.py:(backward|grad)$", "backward"),
)
SAVING = re.compile(r":_?save_checkpoint")  # also the user's own
FORWARD = (re.compile(r"/torch/nn/(modules|functional|parallel)"), "forward")
# The innermost line of the user's code that writes text, tables, arrays or images while it trains.
WRITING = re.compile(
    r"\b(json|yaml)\.(safe_)?dumps?\(|\bopen\(.*[\"'][awx]t?\+?[\"']|\b(np|numpy)\.save\w*\("
    r"|\.(write|writelines|writerows?|write_text|to_csv|to_json|to_parquet|savefig|save)\("
    r"|\b(save_image|imwrite|imsave)\("
)
READ_BACK = re.compile(r"\.(item|cpu|numpy|tolist)\(")
# What waits for a lock, as the text of a line, or as a frame of a library.
LOCKING = re.compile(
    r"\bwith\b.*(lock|phil|mutex|semaphore)\w*\b|\.acquire\(|\bflock\(|\block\(", re.IGNORECASE
)
LOCKS = re.compile(r"/(threading|multiprocessing/synchronize|filelock/\w+)\.py:(__enter__|acquire|wait)$")
QUEUES = "/multiprocessing/queues.py"
TORCHS = "dataset:torch's loop over samples"
LONGEST_LINE = 80  # characters of a line of code that is named
SHIMS = ("_call_impl", "_wrapped_call_impl")  # of nn.Module, between a container and what it calls
# Classes whose methods call those of the transform proper.
BASES = ("Transform", "Module", "BasicTransform", "ImageOnlyTransform", "DualTransform")


def walk(innermost: FrameType) -> tuple[Place, ...]:
    """The places of a stack, innermost first, without letting go of the GIL."""
    walked: list[Place] = []
    frame: FrameType | None = innermost
    while frame is not None:
        code = frame.f_code
        _codes.setdefault(id(code), code)
        walked.append((id(code), frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(walked)


def files_of(walked: tuple[Place, ...]) -> list[str]:
    """The files of the code at these places, in their order."""
    return [_codes[known].co_filename for known, _ in walked]


def is_whole(walked: tuple[Place, ...]) -> bool:
    """Tells whether the stack reaches to its thread's beginning, rather than to a generator that was left."""
    return not _codes[walked[-1][0]].co_flags & SUSPENDABLE


@lru_cache(maxsize=20_000)
def stage_of(walked: tuple[Place, ...], state: str, thread: str) -> tuple[Stage, str]:
    """The activity of a thread, and its innermost line of the user's code, or "".

    The line is "file.py:41 function: text", and " → Class.function" of the library that it has called.

    Args:
        walked: the thread's stack, as `walk` gives it.
        state: Linux's letter: "R" on a core or waiting for one, "D" waiting for storage, "S" asleep.
        thread: its name without its number in a pool, or "" for the main thread.
    """
    stack = [_frame(*place) for place in reversed(walked)]
    for depth, frame in enumerate(stack):  # the others' files, some of thousands of lines, aren't read
        if depth == len(stack) - 1 or anchor(frame) == "fetch" or is_users(frame.filename):
            stack[depth] = frame._replace(source=linecache.getline(frame.filename, frame.line).strip())
    # A forked worker's stack begins with what its parent did; within a loader, what counts is what it calls.
    called = max((depth for depth, frame in enumerate(stack) if anchor(frame)), default=-1) + 1
    return classify(stack, state, thread), _line(stack[called:])


def _line(stack: Sequence[Frame]) -> str:
    """The innermost line of the user's code, for `stage_of`."""
    users = [depth for depth, frame in enumerate(stack) if is_users(frame.filename)]
    if not users:
        return ""
    # A lambda or comprehension belongs to the line that it is written in.
    depth = next((one for one in reversed(users) if not stack[one].function.startswith("<")), users[-1])
    frame, callee = (
        stack[depth],
        next((one for one in stack[depth + 1 :] if not is_users(one.filename)), None),
    )
    text = linecache.getline(frame.filename, frame.line).strip()
    text = text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 1]}…"
    called = f" → {callee.owner}.{callee.function}".replace("→ .", "→ ") if callee else ""
    return f"{basename(frame.filename)}:{frame.line} {frame.function}: {text}{called}"


# Most frames of a stack are those of the ones before.
@lru_cache(maxsize=20_000)
def _frame(known: int, line: int) -> Frame:
    code = _codes[known]
    filename = code.co_filename
    return Frame(
        filename,
        code.co_name,
        code.co_firstlineno,
        line,
        owner=_class_of(code, filename),
        container=_is_container(code),
    )


def _is_container(code: CodeType) -> bool:
    """Tells whether the code is that of a Compose, a Sequential or a similar class."""
    if code.co_name not in ("__call__", "forward", "execute_compose"):
        return False
    return code.co_filename.endswith("/torch/nn/modules/container.py") or "transforms" in code.co_names


@lru_cache(maxsize=4096)
def _class_of(code: CodeType, filename: str) -> str:
    """The class that a method is defined in, or "" for a function."""
    if sys.version_info >= (3, 11):
        outer = code.co_qualname.split(".")[:-1]
        return outer[-1] if outer and outer[-1] != "<locals>" else ""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == filename:
            for value in list(vars(module).values()):
                method = vars(value).get(code.co_name) if isinstance(value, type) else None
                if getattr(method, "__code__", None) is code:
                    return str(value.__name__)
    return ""


def classify(stack: Sequence[Frame], state: str, thread: str) -> Stage:
    """The activity of a thread; `stack` outermost first, `state` and `thread` as for `stage_of`."""
    waiting = is_waiting(stack[-1], state)
    anchors = [anchor(frame) for frame in stack]
    if "worker" in anchors:
        first = len(anchors) - 1 - anchors[::-1].index("worker")
        stack, anchors = stack[first:], anchors[first:]
    kind = next((found for found in anchors if found), "")
    if "fetch" in anchors and kind in ("fetch", "worker", "loader"):
        inwards = stack[anchors.index("fetch") :]
        if "collate_fn(" in inwards[0].source:
            return Stage("fetch", "collate", waiting)
        # A dataset may have processes of its own that make its samples.
        queued = state != "S" and any(QUEUES in frame.filename for frame in inwards)
        return Stage("fetch", "receive" if queued else _working(inwards[1:], state), waiting)
    if kind == "worker":
        return Stage("fetch", _in_worker(stack), waiting)
    queued = waiting and _waits_in_line(stack[-1])
    if kind == "send":
        return Stage("send", "idle" if queued else "send", waiting)
    functions = {frame.function for frame in stack}
    if kind == "pin":
        key = "pin" if "pin_memory" in functions else "idle" if queued else "receive"
        return Stage("pin", key, waiting)
    if kind == "loader":
        pinning = any(frame.filename.endswith("/pin_memory.py") for frame in stack)
        receiving = "_try_get_data" in functions and not queued
        key = _drawing(stack, anchors) or ("pin" if pinning else "receive" if receiving else "wait")
        return Stage("wait", key, waiting)
    if not thread:
        if any(OWN in frame.filename for frame in stack):  # as a batch that is copied, within next()
            return Stage("wait", "wait", waiting)
        return Stage("step", _step_part(stack), waiting)
    key = "idle" if waiting else _working(stack, state).replace("dataset:", "code:")
    return Stage(f"other:{thread}", key, waiting)


def is_waiting(innermost: Frame, state: str) -> bool:
    """Tells whether a thread is blocked, but not for the GIL or for the threads of a parallel region."""
    if state != "S":
        return state != "R"
    return _locks(innermost) or bool(READ_CALL.search(innermost.source)) or _label(innermost) == "read"


@lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """Tells whether the file belongs neither to Python nor to an installed package nor to the sampler."""
    return not filename.startswith(LIBRARIES) and not any(part in filename for part in INSTALLED)


def innermost_users(stack: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's code, or None if there is none."""
    return next((frame for frame in reversed(stack) if is_users(frame.filename)), None)


def place(frame: Frame) -> str:
    """The frame's function, as "name (file.py:12)"."""
    return f"{frame.function} ({basename(frame.filename)}:{frame.first_line})"


@lru_cache(maxsize=20_000)
def anchor(frame: Frame) -> str:
    """The kind of thread that a frame alone shows, or ""."""
    name = _name(frame)
    return next((kind for pattern, kind in ANCHORS if pattern.search(name)), "")


def _name(frame: Frame) -> str:
    return f"{frame.filename}:{frame.function}"


def _locks(frame: Frame) -> bool:
    return bool(LOCK_FILES.search(f"{frame.filename}:") or LOCK_CALL.search(frame.source))


def _waits_in_line(innermost: Frame) -> bool:
    """Tells whether a blocked thread waits for something to arrive, rather than for its bytes."""
    if innermost.filename.endswith("/multiprocessing/connection.py"):
        return innermost.function in ("wait", "poll", "_poll")
    return innermost.function == "accept" or _locks(innermost)


def _drawing(stack: Sequence[Frame], anchors: Sequence[str]) -> str:
    """The stage of a sampler that a loader asks for indices, or "" if it does something else."""
    last = len(anchors) - 1 - anchors[::-1].index("loader")
    called = stack[last + 1 :]
    starting = stack[last].function in ("__init__", "_reset") and called and called[0].function == "__iter__"
    if not starting and stack[last].function != "_next_index":
        return ""
    user = next((frame for frame in called if is_users(frame.filename)), None)
    owners = (frame.owner for frame in ([user] if user else called[::-1]) if frame.owner)
    return f"sampler:{next(owners, place(user) if user else 'sampler')}"


def _in_worker(stack: Sequence[Frame]) -> str:
    """The stage of a worker outside of fetch(): it starts, sends, or waits for indices."""
    for frame in stack[1:]:
        if QUEUES in frame.filename:
            return "idle" if frame.function == "get" else "send"
    return "idle" if len(stack) == 1 else "start"


def _working(stack: Sequence[Frame], state: str) -> str:
    """The stage of a stack that makes a sample: that of the innermost frame that has one."""
    if state == "D":
        return "read"
    if not stack:  # fetch() itself asks a dataset in C for a sample, or is between two samples
        return TORCHS
    return _known(stack, state) or _unknown(stack)


def _known(stack: Sequence[Frame], state: str) -> str:
    """The stage that a frame shows, the innermost one first, or ""."""
    innermost = stack[-1]
    if state == "S" and (LOCKING.search(innermost.source) or LOCKS.search(_name(innermost))):
        return "lock"
    start, name = _transform(stack)
    for depth in range(len(stack) - 1, -1, -1):
        if depth <= start:
            return f"transform:{name}"
        frame, source = stack[depth], innermost.source if depth == len(stack) - 1 else ""
        if DECODE_CALL.search(source):
            return "decode"
        if READ_CALL.search(source):
            return "read"
        if start < 0 and CONVERTING.search(_name(frame)):
            return "decode"
        if label := _label(frame):
            return label
    return ""


def _unknown(stack: Sequence[Frame]) -> str:
    """The stage of code that is not known: the user's innermost function, or the dataset's class."""
    named = [f for f in stack if not f.function.startswith("<") and INSTALLED[-1] not in f.filename]
    if user := innermost_users(named) or innermost_users(stack):
        return f"dataset:{place(user)}"
    return f"dataset:{named[0].owner or place(named[0])}" if named else TORCHS


def _step_part(stack: Sequence[Frame]) -> str:
    """The part of the training step that the main thread is in."""
    parts = [_part_of(frame) for frame in stack]
    for _, part in STEP_PARTS:
        if part in parts:
            return part
    # A loop's head is executed again for each item, what it loops over is not.
    if READ_BACK.search(stack[-1].source) and not stack[-1].source.startswith("for "):
        return "read-back"
    if "forward" in parts:
        return "forward"
    user = innermost_users(stack)
    if user and WRITING.search(user.source):
        return "logging"
    return f"code:{place(user)}" if user else "step"


@lru_cache(maxsize=20_000)
def _part_of(frame: Frame) -> str:
    """The part of the step that a frame alone shows, or ""."""
    name = _name(frame)
    if INSTALLED[-1] in name:
        return ""
    if is_users(frame.filename):
        return "checkpoint" if SAVING.search(name) else ""
    return next((part for pattern, part in (*STEP_PARTS, FORWARD) if pattern.search(name)), "")


@lru_cache(maxsize=20_000)
def _label(frame: Frame) -> str:
    """The stage that a frame's file and function show, or ""."""
    if INSTALLED[-1] in frame.filename:
        return ""
    name = _name(frame)
    if is_users(frame.filename):
        return "read" if FILE_METHODS.search(name) else ""
    return next((stage for pattern, stage in FRAMES if pattern.search(name)), "")


@lru_cache(maxsize=20_000)
def _begins_transform(frame: Frame) -> bool:
    return frame.container or bool(TRANSFORMS.search(_name(frame)))


def _transform(stack: Sequence[Frame]) -> tuple[int, str]:
    """The depth at which a transform begins, or -1, and its name, or "" between two of them."""
    start = next((depth for depth, frame in enumerate(stack) if _begins_transform(frame)), -1)
    if start < 0:
        return -1, ""
    depth = start
    while depth < len(stack) and (stack[depth].container or stack[depth].function in SHIMS):
        depth += 1
    if depth == len(stack):
        return depth - 1, ""
    frame = stack[depth]
    if not frame.owner:
        return depth, place(frame) if is_users(frame.filename) else frame.function
    for inner in stack[depth:]:
        base = not is_users(inner.filename) and (inner.owner in BASES or inner.owner.startswith("_"))
        if inner.owner and not base:
            return depth, inner.owner
    return depth, ""
