"""What abi.py declares is what headrace.h says."""

from __future__ import annotations

import ctypes
import gc
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace._native import abi, ffi
from headrace.errors import NativeError
from support.python import run_python

HEADER = Path(__file__).parents[2] / "native" / "include" / "headrace.h"
TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "hr_op": abi.Op,
    "hr_draw": abi.Draw,
    "hr_pipeline": abi.Pipeline,
    "hr_source": abi.Source,
    "hr_request": abi.Request,
    "hr_stats": abi.Stats,
    "hr_image_facts": abi.ImageFacts,
    "hr_deferred_counts": abi.DeferredCounts,
}
SCALARS = {
    ctypes.c_int32: "int32_t",
    ctypes.c_uint32: "uint32_t",
    ctypes.c_int64: "int64_t",
    ctypes.c_uint64: "uint64_t",
}


def functions() -> dict[str, tuple[str, list[str]]]:
    found = {}
    for result, name, arguments in re.findall(r"HR_API\s+([\w\s]+?[\s*]+)(hr_\w+)\(([^)]*)\);", TEXT):
        parts = [] if arguments.strip() == "void" else [part.strip() for part in arguments.split(",")]
        found[name] = (result.strip(), parts)
    return found


def test_every_function_is_declared_with_its_arguments() -> None:
    header = functions()
    assert header.keys() == abi.FUNCTIONS.keys()
    for name, (restype, argtypes) in abi.FUNCTIONS.items():
        result, arguments = header[name]
        assert len(arguments) == len(argtypes), name
        for text, declared in zip(arguments, argtypes, strict=True):
            if "*" in text or text.startswith("hr_fill "):
                assert declared not in SCALARS, f"{name}: {text}"
            else:
                assert SCALARS[declared] in text.split(), f"{name}: {text}"
        expected: dict[str, Any] = {"void": None, "void*": ctypes.c_void_p, "const char*": ctypes.c_char_p}
        expected |= {name: kind for kind, name in SCALARS.items()}
        assert restype is expected[result], name


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to ask for the layout")
def test_structs_are_laid_out_as_the_compiler_does(tmp_path: Path) -> None:
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        lines += [
            f'printf("{name}.{field[0]} %zu\\n", offsetof({name}, {field[0]}));' for field in struct._fields_
        ]
    for field in abi.STATUS.names or ():
        lines.append(f'printf("hr_status.{field} %zu\\n", offsetof(hr_status, {field}));')
    lines.append('printf("hr_status %zu\\n", sizeof(hr_status));')
    source = tmp_path / "layout.c"
    source.write_text(
        f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{ {" ".join(lines)} return 0; }}\n'
    )
    subprocess.run(["cc", "-o", str(tmp_path / "layout"), str(source)], check=True)
    output = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in (line.split() for line in output.splitlines())}
    for name, struct in STRUCTS.items():
        assert found[name] == ctypes.sizeof(struct)
        for field in struct._fields_:  # type: ignore[assignment]
            assert found[f"{name}.{field[0]}"] == getattr(struct, field[0]).offset, f"{name}.{field[0]}"
    assert found["hr_status"] == abi.STATUS.itemsize
    for field in abi.STATUS.names or ():
        assert found[f"hr_status.{field}"] == abi.STATUS.fields[field][1]  # type: ignore[index]


def test_every_field_of_the_header_is_there() -> None:
    for name, struct in STRUCTS.items():
        body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", TEXT, re.DOTALL)
        assert body is not None
        fields = re.findall(r"(\w+)(?:\[\w+\])?;", body[1])
        assert fields == [field[0] for field in struct._fields_], name


def test_numbers_are_the_headers() -> None:
    values = {name: int(value) for name, value in re.findall(r"(HR_\w+)\s*=\s*(\d+)", TEXT)}
    values |= {name: int(value) for name, value in re.findall(r"#define (HR_\w+) (\d+)", TEXT)}
    assert values["HR_ABI_VERSION"] == abi.ABI_VERSION
    assert (values["HR_STAGES"], values["HR_DECODERS"]) == (abi.STAGES, abi.DECODERS)
    for name in ("OK", "UNSUPPORTED", "CORRUPT", "TIMEOUT"):
        assert values[f"HR_{name}"] == getattr(abi, name)
    assert (values["HR_PARAMS"], values["HR_DRAWS"]) == (abi.PARAMS, abi.DRAWS)


def test_errors_of_the_library_arrive_as_text() -> None:
    with pytest.raises(NativeError, match="threads must be 0 to 1024"):
        ffi.Pool(-1, 0)
    assert all(ffi.library().hr_describe(code) for code in range(11))
    assert ffi.build_info()["version"]


def test_an_op_that_is_not_there_is_an_error() -> None:
    with pytest.raises(NativeError, match="no op 'no_such_op'"):
        ffi.op("no_such_op", ())


def test_images_and_draws_must_have_their_shapes() -> None:
    pipeline = ffi.Pipeline(
        [ffi.op("horizontal_flip", (1.0,))],
        2,
        3,
        dtype=0,
        nhwc=True,
        table=None,
        keep=None,
        decoders=0,
        max_pixels=0,
        pillow_vertical_first=True,
    )
    image, draws = np.arange(18, dtype=np.uint8).reshape(2, 3, 3), np.zeros((1, abi.DRAWS))
    draws[0, 0] = 1
    out = np.empty_like(image)
    assert pipeline.apply(image, draws, out.ctypes.data)
    assert np.array_equal(out, image[:, ::-1])
    assert not pipeline.apply(image[:1], draws, out.ctypes.data)  # of another size than the pipeline's
    with pytest.raises(ValueError, match=r"uint8 \[height, width, 3\], not float32 \[2, 3, 3\]"):
        pipeline.apply(image.astype(np.float32), draws, out.ctypes.data)
    with pytest.raises(ValueError, match=r"draws must be \[1, 32\], not \[0, 32\]"):
        pipeline.apply(image, draws[:0], out.ctypes.data)


def test_an_op_keeps_its_data() -> None:
    ops = [ffi.op("gaussian_blur", (), data=np.full(1000, number, np.float32)) for number in range(50)]
    gc.collect()
    others = [np.full(1000, -1, np.float32) for _ in range(100)]
    assert [op.data[999] for op in ops] == list(range(50))
    assert len(others) == 100


INTERRUPTED = """
import sys
from headrace._native import ffi

interruptions = 0

def interrupt(frame, event, argument):
    global interruptions
    if frame.f_code.co_filename == ffi.__file__:
        interruptions += 1
        ffi.library().hr_abi_version()  # as a finalizer that closes a pool does
    return interrupt

sys.settrace(interrupt)
ffi.library()
sys.settrace(None)
assert interruptions
"""


def test_a_call_of_library_may_be_interrupted_by_another_in_the_same_thread() -> None:
    done = run_python(INTERRUPTED, timeout=60, fresh=True)
    assert done.returncode == 0, done.stderr


def test_a_library_of_another_build_is_refused_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc)")
    source, library = tmp_path / "old.c", tmp_path / "old.so"
    source.write_text("int hr_abi_version(void) { return 1; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setattr(ffi, "_find", lambda: library)
    builds = rf"old.so and the Python files in .* of different builds \(interface 1 and {abi.ABI_VERSION}\)"
    with pytest.raises(NativeError, match=builds + ": reinstall headrace"):
        ffi.library.__wrapped__()
