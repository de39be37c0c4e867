"""The simulated accelerator: `load()` makes it this process's accelerator. See README.md."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import types
from pathlib import Path

import torch

HERE = Path(__file__).parent
BUILT = HERE / "built"  # ignored by git
NAME = "simulated"


class CannotBuildError(Exception):
    """The extension can't be built here; the text says why."""


def build() -> Path:
    """The extension for this torch, built if it or a source has changed since.

    Raises:
        CannotBuildError: there is no compiler, or it fails.
    """
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise CannotBuildError("the simulated accelerator needs a C++ compiler")
    sources = [HERE / "device.cpp", HERE / "backend.cpp"]
    extra = os.environ.get("SIMULATED_FLAGS", "").split()  # for sanitizers
    torch_folder = Path(torch.__file__).parent
    includes = [f"-I{torch_folder / 'include' / rest}" for rest in ("", "torch/csrc/api/include")]
    flags = ["-std=c++20", "-O1", "-fPIC", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    made_of = [*sources, HERE / "device.h"]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in made_of))
    key.update(repr((torch.__version__, str(torch_folder), compiler, flags, extra)).encode())
    library = BUILT / f"{key.hexdigest()[:16]}.so"
    BUILT.mkdir(exist_ok=True)
    with open(BUILT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes need it at the same time
        if library.exists():
            return library
        libraries = [f"-L{torch_folder / 'lib'}", "-ltorch_cpu", "-lc10"]
        command = [compiler, "-shared", *flags, *extra, *includes, *map(str, sources), *libraries, "-o"]
        unfinished = library.with_suffix(".unfinished")
        done = subprocess.run([*command, str(unfinished)], capture_output=True, text=True)
        if done.returncode != 0:
            raise CannotBuildError(f"the simulated accelerator can't be built: {done.stderr[-2000:]}")
        unfinished.rename(library)
    return library


@functools.cache
def load() -> types.ModuleType:
    """Registers the accelerator with torch, and returns its module: `torch.simulated`. Devices are named
    "simulated:0" and "simulated:1"; torch.accelerator is about them from now on, in this process."""
    torch.ops.load_library(build())
    torch.utils.rename_privateuse1_backend(NAME)
    from accelerator import gloo, module

    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    gloo.register()
    return module
