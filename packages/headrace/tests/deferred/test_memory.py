"""Arrays and tensors on deferred memory are like others for whatever reads, changes, copies or sends them."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import random
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch.utils import dlpack
from torch.utils.data import default_collate

from headrace._native import deferred
from support.processes import exit_of_fork
from support.python import run_python

if (problem := deferred.problem()) is not None:
    pytest.skip(problem, allow_module_level=True)

Pixels = npt.NDArray[np.uint8]

SOURCE = np.random.default_rng(0).integers(0, 255, (413, 478, 3), np.uint8)


def deferred_array(source: Pixels = SOURCE) -> Pixels:
    memory = deferred.Piece([deferred.CopyFill(source)], source.nbytes, layout=0).take()
    return np.frombuffer(memory, np.uint8, source.nbytes).reshape(source.shape)


def is_untouched(array: Any) -> bool:
    address = array.ctypes.data if isinstance(array, np.ndarray) else array.data_ptr()
    return deferred.state(address) == deferred.UNTOUCHED


# --- the same values ---------------------------------------------------------------------------------------


def saved(array: Pixels) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def loaded(tensor: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


def changed(array: Any) -> Any:
    array += 1
    array[3:5, 7] = 9
    return array


def set_first(array: Any) -> Any:
    array[0, 0, 0] = 200
    return array


def received(array: Any) -> Any:
    ours, theirs = multiprocessing.Pipe()
    sender = threading.Thread(target=ours.send, args=(array,))
    sender.start()
    got = theirs.recv()
    sender.join()
    return got


def resized(tensor: torch.Tensor) -> torch.Tensor:
    image = tensor.permute(2, 0, 1)[None].contiguous()
    return torch.nn.functional.interpolate(image, size=(64, 64), mode="bilinear", antialias=True)


def swapped(array: Pixels) -> Pixels:
    array[:] = array[::-1].copy()
    return array


BOTH: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(),
    "mean of a part": lambda x: x[5:50, 3:30].sum(),
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "one value": lambda x: x[7, 9, 1].item(),
    "index": lambda x: x[[3, 1], [2, 5]],
    "comparison": lambda x: x > 100,
    "change in place": changed,
    "write first": set_first,
    "views": lambda x: x[::2, 5:9][1:],
    "numpy": lambda x: np.asarray(x) + 1,
    "mirrored": lambda x: np.asarray(x)[:, ::-1].copy(),
    "list": lambda x: x[:2, :3].tolist(),
    "str": str,
    "batch": lambda x: default_collate([x, x]),
    "sent": received,
    "image": lambda x: np.asarray(Image.fromarray(np.asarray(x)).resize((50, 50))),
}
ARRAYS: dict[str, Callable[[Pixels], Any]] = {
    "pickle protocol 5": lambda x: pickle.loads(pickle.dumps(x, 5)),
    "tobytes": lambda x: x.tobytes(),
    "memoryview": lambda x: memoryview(x).tobytes(),  # type: ignore[arg-type]
    "bytes": lambda x: bytes(x.data),
    "save": saved,
    "astype": lambda x: x.astype(np.float32),
    "swap rows": swapped,
    "stack": lambda x: np.stack([x, x]),
    "from_numpy": lambda x: torch.from_numpy(x).float().mean((0, 1)),
    "asarray of it": lambda x: np.ascontiguousarray(x.transpose(2, 0, 1)),
    "DLPack": lambda x: np.from_dlpack(x),
}
TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "clone": lambda x: x.clone(),
    "mean": lambda x: x.permute(2, 0, 1).float().mean((1, 2)),
    "interpolate": resized,
    "save": loaded,
    "shared": lambda x: x.share_memory_(),
    "DLPack": lambda x: dlpack.from_dlpack(dlpack.to_dlpack(x)),
    "stack": lambda x: torch.stack([x, x]),
    "set_": lambda x: torch.empty(0, dtype=torch.uint8).set_(x),  # type: ignore[call-overload]
    "out": lambda x: torch.bitwise_not(x, out=torch.empty_like(x)),
    "storage": lambda x: bytes(x.untyped_storage()),
}


def equal(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, torch.Tensor):
        same = found.dtype == wanted.dtype and found.stride() == wanted.stride()
        return type(found) is type(wanted) and same and torch.equal(found, wanted)
    if isinstance(wanted, np.ndarray):
        same = found.dtype == wanted.dtype and found.strides == wanted.strides
        return type(found) is type(wanted) and same and np.array_equal(found, wanted)
    return bool(found == wanted)


@pytest.mark.parametrize("name", [*BOTH, *ARRAYS])
def test_an_array_is_like_any_other(name: str) -> None:
    array = deferred_array()
    assert type(array) is np.ndarray
    assert array.flags.writeable
    assert array.ctypes.data % 64 == 0
    assert is_untouched(array)
    function = (BOTH | ARRAYS)[name]
    assert equal(function(array), function(SOURCE.copy()))


@pytest.mark.parametrize("name", [*BOTH, *TENSORS])
def test_a_tensor_is_like_any_other(name: str) -> None:
    tensor = torch.from_numpy(deferred_array())
    assert type(tensor) is torch.Tensor
    assert is_untouched(tensor)
    function = (BOTH | TENSORS)[name]
    assert equal(function(tensor), function(torch.from_numpy(SOURCE.copy())))


def test_what_looks_at_no_value_touches_nothing() -> None:
    array = deferred_array()
    tensor = torch.from_numpy(array)
    views: list[Any] = [
        array[10:20, 5:9],
        array.T,
        array.reshape(-1),
        array.view(np.int8),
        tensor.permute(2, 0, 1),
    ]
    views += [tensor[None], tensor.view(-1), tensor.unbind(2), tensor.detach(), memoryview(array)]  # type: ignore[arg-type]
    assert array.shape == SOURCE.shape
    assert is_untouched(array)
    del array, tensor
    assert all(is_untouched(view) for view in views if isinstance(view, np.ndarray))
    assert np.array_equal(views[0], SOURCE[10:20, 5:9])  # it outlives the array


def test_memory_that_was_changed_stays_changed() -> None:
    array = deferred_array()
    array[5] = 17
    assert (array[5] == 17).all()
    assert np.array_equal(array[6:], SOURCE[6:])


def test_what_still_shows() -> None:
    """NumPy and torch can't make memory larger in place that isn't theirs."""
    array = deferred_array()
    assert not array.flags.owndata
    with pytest.raises(ValueError, match="own"):
        array.resize((500, 500, 3))
    with pytest.raises(RuntimeError, match="resiz"):
        torch.from_numpy(deferred_array().reshape(-1)).resize_(1 << 20)


# --- reads of the kernel -----------------------------------------------------------------------------------


def written(array: Pixels, path: Path) -> bytes:
    with path.open("wb", buffering=0) as file:
        os.write(file.fileno(), array.data)
    return path.read_bytes()


def written_buffered(array: Pixels, path: Path) -> bytes:
    with path.open("wb") as file:
        file.write(array.data)
    return path.read_bytes()


def to_file(array: Pixels, path: Path) -> bytes:
    array.tofile(path)
    return path.read_bytes()


def numpy_saved(array: Pixels, path: Path) -> bytes:
    with path.open("wb") as file:
        np.save(file, array)
    return np.load(path).tobytes()  # type: ignore[no-any-return]


def torch_saved(array: Pixels, path: Path) -> bytes:
    torch.save(torch.from_numpy(array), path)
    return torch.load(path).numpy().tobytes()  # type: ignore[no-any-return]


def sent_by_socket(array: Pixels, path: Path) -> bytes:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(array.data[:2])
        theirs.settimeout(5)
        return theirs.recv(array[:2].nbytes) + array[2:].tobytes()


def sent_by_connection(array: Pixels, path: Path) -> bytes:
    ours, theirs = multiprocessing.Pipe()
    ours.send_bytes(array[:2].data.cast("B"))
    return theirs.recv_bytes() + array[2:].tobytes()


@pytest.mark.parametrize(
    "send",
    [
        *(written, written_buffered, to_file, numpy_saved, torch_saved),
        *(sent_by_socket, sent_by_connection),
    ],
)
def test_reads_of_the_kernel_are_right_or_an_error(
    send: Callable[[Pixels, Path], bytes], tmp_path: Path
) -> None:
    array = deferred_array()
    try:
        sent = send(array, tmp_path / "file")
    except OSError:
        sent = None
    assert sent in (None, SOURCE.tobytes())
    assert np.array_equal(array, SOURCE)
    assert send(array, tmp_path / "again") == SOURCE.tobytes()


def test_an_image_comes_too_late_for_zeros_that_a_thread_has_touched() -> None:
    piece = deferred.ZerosPiece(2, SOURCE.nbytes)
    memory = piece.take()
    fill: Any = deferred.CopyFill(SOURCE)
    assert piece.put(0, fill)
    assert np.array_equal(np.frombuffer(memory, np.uint8, SOURCE.nbytes).reshape(SOURCE.shape), SOURCE)
    assert not piece.put(1, fill)


# --- threads, processes, signals ---------------------------------------------------------------------------


def test_threads_that_touch_one_array_at_once() -> None:
    wrong = []
    for _ in range(300):
        array, barrier = deferred_array(SOURCE[:60]), threading.Barrier(8)

        def touch(array: Pixels = array, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            if not np.array_equal(array, SOURCE[:60]):
                wrong.append(array)

        threads = [threading.Thread(target=touch) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_thread_with_a_small_stack() -> None:
    array, right = deferred_array(), []
    before = threading.stack_size(64 << 10)
    try:
        thread = threading.Thread(target=lambda: right.append(bool((array == SOURCE).all())))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert right == [True]


def test_ten_thousand_arrays_alive() -> None:
    source = SOURCE[:5]
    arrays = [deferred_array(source) for _ in range(10_000)]
    random.Random(0).shuffle(arrays)
    assert all(np.array_equal(array, source) for array in arrays[:1000])
    live = deferred.counts().live
    del arrays[::2]
    assert deferred.counts().live == live - 5000
    assert all(np.array_equal(array, source) for array in arrays)


def test_a_fork_has_its_own_memory() -> None:
    array, touched = deferred_array(), deferred_array()
    touched[0] = 1

    def change() -> None:
        assert is_untouched(array)
        assert np.array_equal(array, SOURCE)
        assert (touched[0] == 1).all()
        array[:] = touched[:] = 3
        assert np.array_equal(deferred_array(), SOURCE)

    assert exit_of_fork(change) == 0
    assert is_untouched(array)
    assert np.array_equal(array, SOURCE)
    assert (touched[0] == 1).all()
    assert np.array_equal(touched[1:], SOURCE[1:])


def test_signals_while_memory_is_filled() -> None:
    source = np.resize(SOURCE, 60 << 20)
    alarms = []
    before = signal.signal(signal.SIGALRM, lambda *_: alarms.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        arrays = [deferred_array(source) for _ in range(5)]
        assert all(int(array[1 << 20]) == int(source[1 << 20]) for array in arrays)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert alarms
    assert np.array_equal(arrays[0], source)


# --- what ends the process ---------------------------------------------------------------------------------

PROLOGUE = """
import ctypes, faulthandler, os, sys
import numpy as np
from headrace._native import deferred
def memory(nbytes):
    return deferred.Piece([deferred.CopyFill(np.full(nbytes, 7, np.uint8))], nbytes, layout=0).take()
def array():
    return np.frombuffer(memory(60_000), np.uint8, 60_000)
"""


def test_faulthandler_may_be_enabled_before_and_after() -> None:
    program = """
faulthandler.enable()
assert deferred.problem() is None
assert (array() == 7).all()
faulthandler.disable()
faulthandler.enable()
assert (array() == 7).all()
faulthandler.disable()
assert (array() == 7).all()
faulthandler.enable()
kept = array()
print("alive", flush=True)
ctypes.string_at(8)
"""
    ended = run_python(PROLOGUE + program)
    assert (ended.stdout, ended.returncode) == ("alive\n", -signal.SIGSEGV)
    assert ended.stderr.count("Fatal Python error: Segmentation fault") == 1
    assert "string_at" in ended.stderr


@pytest.mark.parametrize(
    "program",
    [
        "ctypes.string_at(8)",
        "kept = array(); ctypes.string_at(8)",
        "os.kill(os.getpid(), 11)",
        "kept = array(); ctypes.string_at(kept.ctypes.data + 65000)",  # past the end
        "deferred.take(100, deferred.filling_image(), 8, None)[0]",  # a fault of the fill
    ],
)
@pytest.mark.parametrize("handled", [False, True])
def test_a_genuine_fault_ends_the_process(program: str, handled: bool) -> None:
    first = "faulthandler.enable()" if handled else "faulthandler.disable()"
    ended = run_python(f"{PROLOGUE}{first}\nassert deferred.problem() is None\n{program}", timeout=60)
    assert ended.returncode == -signal.SIGSEGV
    assert ("Fatal Python error" in ended.stderr) == handled


def test_without_address_space_there_is_none() -> None:
    program = """
import resource
used = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)
print(deferred.problem(), memory(5))
"""
    ended = run_python(PROLOGUE + program)
    assert "ulimit -v" in ended.stdout
    assert ended.stdout.endswith("None\n")
