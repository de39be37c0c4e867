"""OpenCV's functions on deferred arrays give what the installed OpenCV gives, and stay late."""

from __future__ import annotations

import importlib
import io
import platform
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from headrace import deferred
from headrace._native import deferred as memory
from headrace._native import ffi
from headrace.deferred import arrays
from support import odd_jpegs, pngs
from support.deferred_images import needs_native
from support.jpegs import JPEG_KINDS, jpeg
from support.odd_files import ODD_FILES, saved

cv2 = pytest.importorskip("cv2", reason="OpenCV isn't installed")
opencv = importlib.import_module("headrace.deferred.opencv")

NAMES = [*opencv.STEPS, "LUT", "convertScaleAbs", "imread", "imdecode", "merge"]
OPENCVS = {name: getattr(cv2, name) for name in NAMES}
NUMPYS = np.ascontiguousarray
Call = tuple[str, tuple[Any, ...]]


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(arrays, "MOST_UNUSED", 1 << 30)  # most arrays of these tests are touched
    opencv.start()
    yield
    opencv.stop()


def test_arrays_that_are_always_touched_are_filled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_native("PNG")
    monkeypatch.setattr(arrays, "MOST_UNUSED", 3)
    pixels = np.arange(90 * 60 * 3, dtype=np.uint8).reshape(90, 60, 3)
    data, late = png(pixels), []
    for _ in range(5):
        resized = cv2.resize(cv2.imdecode(data, cv2.IMREAD_COLOR), (40, 30))
        late.append(untouched(resized))
        assert np.array_equal(resized, OPENCVS["resize"](pixels, (40, 30)))
    assert late == [True, True, True, False, False]
    assert untouched(cv2.imdecode(data, cv2.IMREAD_COLOR))


def untouched(array: Any) -> bool:
    return bool(memory.state(array.ctypes.data) == memory.UNTOUCHED)


def png(pixels: Any) -> Any:
    return cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, 0])[1]


@st.composite
def images(draw: Any) -> Any:
    """Pixels that nobody smoothed, of any size, gray or not."""
    edges = st.integers(1, 90) | st.integers(1, 300)
    shape = (draw(edges), draw(edges), *draw(st.sampled_from([(), (3,), (3,)])))
    pixels = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, shape, dtype=np.uint8)
    few = draw(st.booleans())
    return np.repeat(pixels[: shape[0] // 3 + 1], 3, 0)[: shape[0]].copy() if few else pixels


LEVELS = st.tuples(*[st.integers(0, 255)] * 3)
EDGES = st.integers(1, 80) | st.integers(1, 300)
BORDERS = st.sampled_from(
    [cv2.BORDER_CONSTANT, cv2.BORDER_REPLICATE, cv2.BORDER_REFLECT, cv2.BORDER_REFLECT_101]
)


def floats(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_subnormal=False)


@st.composite
def affine(draw: Any) -> Any:
    numbers = [draw(floats(-1.5, 1.5)) for _ in range(4)]
    # OpenCV takes minutes for pixels that come from far outside of an image that is reflected.
    assume(abs(numbers[0] * numbers[3] - numbers[1] * numbers[2]) > 0.1)
    return np.array([[*numbers[:2], draw(floats(-50, 50))], [*numbers[2:], draw(floats(-50, 50))]])


@st.composite
def perspective(draw: Any) -> Any:
    return np.vstack([draw(affine()), [draw(floats(-2e-4, 2e-4)), draw(floats(-2e-4, 2e-4)), 1.0]])


def call(name: str, *arguments: Any) -> st.SearchStrategy[Call]:
    strategies = [each if isinstance(each, st.SearchStrategy) else st.just(each) for each in arguments]
    return st.tuples(st.just(name), st.tuples(*strategies))


WARPS = (st.tuples(EDGES, EDGES), None, st.sampled_from([0, 1, 16, 17]), BORDERS, LEVELS)


def blurring(bell: tuple[float, int]) -> Call:
    """The call that albumentations' GaussianBlur makes."""
    deviation, size = bell
    values = np.exp(-0.5 * ((np.arange(size) - size // 2) / deviation) ** 2)
    return "sepFilter2D", (-1, *[values / values.sum()] * 2)


CALLS = {
    "cvtColor": call("cvtColor", st.sampled_from(sorted(opencv.steps.CONVERSIONS))),
    "resize": call(
        "resize", st.tuples(EDGES, EDGES), None, 0, 0, st.sampled_from(sorted(opencv.steps.FILTERS))
    ),
    "flip": call("flip", st.integers(-1, 1)),
    "rotate": call("rotate", st.integers(0, 2)),
    "copyMakeBorder": call("copyMakeBorder", *[st.integers(0, 40)] * 4, BORDERS, None, LEVELS),
    "warpAffine": call("warpAffine", affine(), *WARPS),
    "warpPerspective": call("warpPerspective", perspective(), *WARPS),
    "GaussianBlur": call("GaussianBlur", st.sampled_from([(3, 3), (5, 9), (0, 0)]), floats(0.3, 3)),
    "sepFilter2D": st.tuples(floats(0.3, 4), st.sampled_from([3, 5, 9, 21])).map(blurring),
    "LUT": call(
        "LUT", st.integers(0, 99).map(lambda n: np.random.default_rng(n).permutation(256).astype(np.uint8))
    ),
    "convertScaleAbs": call("convertScaleAbs", None, floats(0, 2), floats(-60, 60)),
}


def applied(functions: dict[str, Any], pixels: Any, calls: list[Call]) -> Any:
    for name, arguments in calls:
        color = pixels.ndim == 3
        takes_gray = name != "cvtColor" or arguments[0] == cv2.COLOR_GRAY2BGR
        if color if name == "cvtColor" and takes_gray else not color and not takes_gray:
            continue  # OpenCV refuses it
        pixels = functions[name](pixels, *arguments)
    return pixels


@pytest.mark.long
@settings(max_examples=1500)
@given(
    calls=st.lists(st.sampled_from(list(CALLS)).flatmap(CALLS.__getitem__), min_size=2, max_size=8),
    pixels=images(),
)
def test_chains_of_functions_give_opencvs_own_pixels(calls: list[Call], pixels: Any) -> None:
    late = cv2.imdecode(png(pixels), cv2.IMREAD_COLOR if pixels.ndim == 3 else cv2.IMREAD_GRAYSCALE)
    ours = applied({each: getattr(cv2, each) for each in NAMES}, late, calls)
    assert np.array_equal(ours, applied(OPENCVS, pixels, calls))


@settings(max_examples=60)
@given(
    data=st.data(), name=st.sampled_from(["warpAffine", "warpPerspective"]), flags=st.sampled_from([16, 17])
)
def test_extreme_matrices_give_opencvs_own_pixels(data: st.DataObject, name: str, flags: int) -> None:
    numbers = st.sampled_from([0.0, 1e-300, 0.37, 1.0, 99.5, 4e4, 1e5, 1e6, 3e9, 1e15, 1e300])
    signed = st.tuples(numbers, st.sampled_from([1, -1])).map(lambda pair: pair[0] * pair[1])
    rows = 2 if name == "warpAffine" else 3
    matrix = np.array(data.draw(st.lists(signed, min_size=3 * rows, max_size=3 * rows))).reshape(rows, 3)
    pixels = np.random.default_rng(2).integers(0, 256, (47, 61, 3), dtype=np.uint8)
    calls: list[Call] = [(name, (matrix, (53, 39), None, flags, cv2.BORDER_CONSTANT, (9, 8, 7)))]
    late = cv2.imdecode(png(pixels), cv2.IMREAD_COLOR)
    theirs = applied(OPENCVS, pixels, calls)
    assert np.array_equal(applied({name: getattr(cv2, name)}, late, calls), theirs)
    if name == "warpAffine" and opencv.steps.variant.of[name] == 4:  # whatever the matrix is
        warp = opencv.steps.OpencvWarp(flags == 17, "constant", (7, 8, 9), (53, 39), False, 4)
        bounded = np.clip(matrix, -1e6, 1e6)
        seen = opencv.seen(cv2.imdecode(png(pixels), cv2.IMREAD_COLOR))
        ours = opencv.steps.after(seen, warp, tuple(bounded.ravel().tolist())).array()
        assert np.array_equal(ours, OPENCVS[name](pixels, bounded, *calls[0][1][1:]))


def cut(name: str, pixels: Any, contiguous: Callable[[Any], Any]) -> Any:
    """A view of some pixels, or a copy of one."""
    height, width = pixels.shape[:2]
    view = pixels[height // 4 : height - height // 5, width // 7 : width - width // 8]
    if view.size == 0 or name == "whole":
        return pixels
    view = view if name == "crop" else view[:, ::-1]
    return contiguous(view) if name == "copy" else view


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=25)
@given(data=st.data(), pixels=images(), view=st.sampled_from(["whole", "crop", "mirror", "copy"]))
def test_each_function_gives_opencvs_own_pixels(
    name: str, data: st.DataObject, pixels: Any, view: str
) -> None:
    needs_native("PNG")
    before = data.draw(st.lists(st.sampled_from(list(CALLS)).flatmap(CALLS.__getitem__), max_size=2))
    calls = [*before, data.draw(CALLS[name])]
    late = cv2.imdecode(png(pixels), cv2.IMREAD_COLOR if pixels.ndim == 3 else cv2.IMREAD_GRAYSCALE)
    looks_turned = b"eXIf" in png(pixels).tobytes()  # in what is called EXIF's chunk, or pixels
    assert untouched(late) or min(pixels.shape[:2]) < 2 or looks_turned
    ours = applied({each: getattr(cv2, each) for each in NAMES}, cut(view, late, np.ascontiguousarray), calls)
    theirs = applied(OPENCVS, cut(view, pixels, NUMPYS), calls)
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    assert np.array_equal(ours, theirs)


SAMPLES: dict[str, tuple[Any, ...]] = {
    **{name: opencv._CALLS[name][0] for name in opencv.STEPS},
    "LUT": (np.arange(256, dtype=np.uint8),),
    "convertScaleAbs": (None, 1.5, 3),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_each_function_leaves_its_array_untouched(name: str) -> None:
    needs_native("PNG")
    pixels = np.random.default_rng(1).integers(0, 256, (60, 50, 3), dtype=np.uint8)
    late = cv2.imdecode(png(pixels), cv2.IMREAD_COLOR)
    assert untouched(getattr(cv2, name)(late[3:50, 40:7:-1], *SAMPLES[name]))
    assert untouched(late)


FILES: dict[str, Callable[[], bytes]] = {
    **ODD_FILES,
    **{f"JPEG {kind}": partial(jpeg, np.random.default_rng(3), kind, 61, 47) for kind in JPEG_KINDS},
    **{f"JPEG: {name}": make for name, make in (odd_jpegs.TAKEN | odd_jpegs.FOUR_COMPONENTS).items()},
    **{f"PNG: {name}": make for name, make in (pngs.TAKEN | pngs.REFUSED | pngs.DECEPTIVE).items()},
}


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved("JPEG", width=61, height=47, exif=exif)


FILES |= {f"turned {n}": partial(turned, n) for n in range(10)}


def with_exif(*entries: bytes, mark: bytes = b"II*\0", times: int = 1, cut: int = 0) -> bytes:
    """A JPEG whose EXIF has some entries of 12 bytes."""
    tiff = mark + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4)
    exif = (b"Exif\0\0" + tiff)[: 6 + len(tiff) - cut]
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    plain = saved("JPEG", width=61, height=47)
    return plain[:2] + segment * times + plain[2:]


def entry(tag: int, kind: int, count: int, value: int) -> bytes:
    return struct.pack("<HHII", tag, kind, count, value)


UPSIDE = entry(0x112, 3, 1, 3)
FILES |= {
    f"EXIF: {name}": partial(with_exif, *entries, **arguments)
    for name, entries, arguments in (
        ("two segments", (UPSIDE,), {"times": 2}),
        ("doubled header", (UPSIDE,), {"mark": b"Exif\0\0II*\0"}),
        ("bad mark", (UPSIDE,), {"mark": b"II+\0"}),
        ("bad order", (UPSIDE,), {"mark": b"IM*\0"}),
        ("truncated directory", (entry(0x100, 4, 1, 5), UPSIDE), {"cut": 9}),
        ("no entries", (), {}),
        ("LONG", (entry(0x112, 4, 1, 3),), {}),
        ("count 0", (entry(0x112, 3, 0, 3),), {}),
        ("count 2", (entry(0x112, 3, 2, 3),), {}),
        ("twice", (UPSIDE, entry(0x112, 3, 1, 6)), {}),
        ("unknown type", (entry(0x10F, 77, 1, 0), UPSIDE), {}),
        ("data elsewhere", (entry(0x11A, 5, 1, 1 << 20), UPSIDE), {}),
        ("no orientation", (entry(0x100, 4, 1, 5),), {}),
    )
}
FLAGS = {
    name: getattr(cv2, f"IMREAD_{name}")
    for name in ("COLOR", "COLOR_RGB", "GRAYSCALE", "UNCHANGED", "ANYCOLOR", "IGNORE_ORIENTATION")
}


def outcome(function: Any, *arguments: Any) -> Any:
    try:
        array = function(*arguments)
    except cv2.error as error:
        return str(error)
    return None if array is None else (array.dtype, array.shape, array.strides, array.tobytes())


@pytest.mark.parametrize("name", FILES)
def test_files_are_read_as_opencv_reads_them(name: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(FILES[name]())
    buffer = np.frombuffer(path.read_bytes(), np.uint8)
    for flag in FLAGS.values():
        for function, source in (("imread", str(path)), ("imdecode", buffer)):
            ours = outcome(getattr(cv2, function), source, flag)
            assert ours == outcome(OPENCVS[function], source, flag)


def test_ordinary_files_are_late_and_missing_ones_none(tmp_path: Path) -> None:
    needs_native("PNG")
    for name in ("JPEG 4:2:0", "png", "rotated by exif", "turned 3"):
        (tmp_path / "image").write_bytes(FILES[name]())
        assert untouched(cv2.imread(tmp_path / "image"))
    for name in ("JPEG 4:2:0", "JPEG gray"):
        (tmp_path / "image").write_bytes(FILES[name]())
        assert untouched(cv2.imread(tmp_path / "image", cv2.IMREAD_GRAYSCALE))
    assert cv2.imread(str(tmp_path / "missing")) is None
    with pytest.raises(cv2.error):
        cv2.imdecode(np.zeros(0, np.uint8), cv2.IMREAD_COLOR)


@pytest.mark.parametrize("sampling", ["4:2:0", "4:2:2", "4:4:4"])
def test_damaged_data_and_crops_are_read_as_opencv_reads_them(sampling: str) -> None:
    rng = np.random.default_rng(0)
    data = np.frombuffer(jpeg(rng, sampling, 90, 70), np.uint8)
    places = rng.integers(len(data) // 2, len(data) - 2, 24)
    for damaged in (data, *(np.concatenate([data[:at], [7], data[at + 1 :]]) for at in places)):
        for flag in (cv2.IMREAD_COLOR, cv2.IMREAD_GRAYSCALE):
            late, wanted = (
                read(damaged.astype(np.uint8), flag) for read in (cv2.imdecode, OPENCVS["imdecode"])
            )
            crop = cv2.resize(late[21:60, 17:49], (32, 32))
            assert np.array_equal(crop, OPENCVS["resize"](wanted[21:60, 17:49], (32, 32)))
            assert np.array_equal(late, wanted)


@pytest.mark.parametrize("simd", ffi.simd_names())
def test_all_instruction_sets_give_the_same(simd: str) -> None:
    needs_native("PNG")
    ffi.simd_force(simd)
    try:
        assert all(map(opencv._fits, opencv._CALLS))
    finally:
        ffi.simd_force(None)


def test_settings_of_opencv_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencv, "_verdicts", {})  # which later workers would report
    pixels = np.random.default_rng(1).integers(0, 256, (60, 50, 3), dtype=np.uint8)
    threads = cv2.getNumThreads()
    # Of HSV there are variants.
    calls = [*SAMPLES.items(), ("cvtColor", (cv2.COLOR_HSV2BGR,)), ("cvtColor", (cv2.COLOR_HSV2RGB,))]
    try:
        for optimized, count in ((True, 1), (False, 1), (True, 0), (True, 4)):
            cv2.setUseOptimized(optimized)
            cv2.setNumThreads(count)
            for name, arguments in calls:
                late = cv2.imdecode(png(pixels), cv2.IMREAD_COLOR)
                assert np.array_equal(getattr(cv2, name)(late, *arguments), OPENCVS[name](pixels, *arguments))
    finally:
        cv2.setUseOptimized(True)
        cv2.setNumThreads(threads)


def planar(image: Any) -> Any:
    return np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)


ODD_CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "result of LUT": ("LUT", (np.arange(256, dtype=np.uint8), np.zeros((40, 50, 3), np.uint8)), {}),
    "result of convertScaleAbs": ("convertScaleAbs", (np.zeros((2, 2), np.uint8), 2, 1), {}),
    "size and deviation 0": ("GaussianBlur", ((0, 5), 0), {}),
    "no deviation": ("GaussianBlur", ((3, 3),), {}),
    "deviation of one axis": ("GaussianBlur", ((0, 0), 0, None, 1.0), {}),
    "border of another type": ("copyMakeBorder", (1, 1, 1, 1, 0.0), {}),
    "side True": ("copyMakeBorder", (True, 1, 1, 1, 1), {}),
    "color of an array": ("copyMakeBorder", (1, 1, 1, 1, 0, None, np.array([1, 2, 3])), {}),
    "size of arrays": ("resize", ((np.array(5), np.array(6)),), {}),
    "factor of another type": ("resize", ((5, 5), None, ""), {}),
    "two images": ("cvtColor", (4,), {"src": np.zeros((4, 4, 3), np.uint8)}),
    **{f"usual {name}": (name, arguments, {}) for name, arguments in SAMPLES.items() if name != "cvtColor"},
}


@pytest.mark.parametrize("name", ODD_CALLS)
@pytest.mark.parametrize("kind", ["color", "planar", "gray", "gray with an axis"])
def test_odd_calls_end_as_opencvs_own(name: str, kind: str) -> None:
    function, arguments, named = ODD_CALLS[name]
    shape = (40, 50, 3) if kind in ("color", "planar") else (40, 50)
    pixels = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    late = cv2.imdecode(png(pixels), cv2.IMREAD_COLOR if len(shape) == 3 else cv2.IMREAD_GRAYSCALE)
    if kind == "planar":
        late, pixels = planar(late), planar(pixels)
    elif kind == "gray with an axis":
        late, pixels = late[..., None], pixels[..., None]
    ours, theirs = (
        outcome(lambda x, f=f: f(x, *arguments, **named), image)
        for f, image in ((getattr(cv2, function), late), (OPENCVS[function], pixels))
    )
    assert ours == theirs


@pytest.mark.parametrize(
    "flags", [(True,), (1.0,), ([],), (None, 1), (np.zeros((47, 61, 3), np.uint8),)], ids=str
)
def test_odd_flags_are_opencvs_own_matter(flags: tuple[Any, ...], tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(turned(1))
    for function, source in (("imread", str(path)), ("imdecode", np.fromfile(path, np.uint8))):
        ours, theirs = (outcome(f, source, *flags) for f in (getattr(cv2, function), OPENCVS[function]))
        assert ours == theirs


def test_descriptors_and_limits_are_opencvs_own_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "image"
    path.write_bytes(turned(1))
    with path.open("rb") as file:
        with pytest.raises(cv2.error):
            cv2.imread(file.fileno())
        assert file.read(2) == b"\xff\xd8"
    monkeypatch.setattr(opencv, "IS_LIMITED", True)
    assert opencv._decoded(path.read_bytes(), cv2.IMREAD_COLOR) is None


def test_threads_wait_for_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def slow(name: str) -> bool:
        compared.append(name)
        threading.Event().wait(0.1)
        return False

    found = []
    monkeypatch.setattr(opencv, "_fits", slow)
    monkeypatch.setattr(opencv, "_verdicts", {})
    threads = [threading.Thread(target=lambda: found.append(opencv._differs("flip"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 3
    assert compared == ["flip"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors always fuse multiply-adds")
def test_a_filter_that_rounds_otherwise_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencv, "_verdicts", {})
    try:
        cv2.setUseOptimized(False)
        assert opencv._differs("sepFilter2D")
    finally:
        cv2.setUseOptimized(True)


def test_after_a_comparison_that_fails_a_function_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(name: str) -> bool:
        raise MemoryError(name)

    monkeypatch.setattr(opencv, "_fits", failing)
    monkeypatch.setattr(opencv, "_verdicts", {})
    assert all(map(opencv._differs, [*opencv.STEPS, "imread"]))


def test_only_functions_that_are_called_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_native("PNG")
    monkeypatch.setattr(opencv, "_verdicts", {})
    cv2.flip(cv2.imdecode(png(np.zeros((9, 9, 3), np.uint8)), cv2.IMREAD_COLOR), 1)
    assert {name for name, _ in opencv._verdicts} == {"imread", "flip"}


def test_a_function_that_differs_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_native("PNG")

    def inverted(*arguments: Any) -> Any:
        return 255 - OPENCVS["resize"](*arguments)

    monkeypatch.setitem(opencv._originals, "resize", inverted)
    monkeypatch.setattr(opencv, "_verdicts", {})
    late = cv2.imdecode(png(np.zeros((9, 9, 3), np.uint8)), cv2.IMREAD_COLOR)
    assert untouched(late)
    assert not untouched(cv2.resize(late, (5, 5)))
    (sentence,) = opencv.differing()
    assert sentence.startswith("cv2.resize, because OpenCV ")


def test_later_changes_of_an_array_are_its_own() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (60, 50, 3), dtype=np.uint8)
    late = cv2.imdecode(png(pixels), cv2.IMREAD_COLOR)
    small = cv2.resize(late, (20, 20))
    late[:] = 7
    assert np.array_equal(small, OPENCVS["resize"](pixels, (20, 20)))
    assert np.array_equal(cv2.resize(late, (5, 5)), np.full((5, 5, 3), 7))


@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_arrays_of_pillows_images_are_recorded_as_well(mode: str) -> None:
    needs_native("PNG")
    calls: list[Call] = [
        ("resize", ((33, 21), None, 0, 0, cv2.INTER_NEAREST)),
        ("resize", ((120, 90), None, 0, 0, cv2.INTER_LINEAR)),
        ("warpAffine", (np.array([[0.9, -0.3, 4.2], [0.25, 1.1, -3.7]]), (70, 50))),
        ("GaussianBlur", ((3, 3), 0)),
        ("flip", (1,)),
    ]
    data = saved("PNG", mode)
    wanted = np.array(Image.open(io.BytesIO(data)))
    deferred.install()
    try:
        for name, arguments in calls:
            late = np.array(Image.open(io.BytesIO(data)))
            assert untouched(late)
            crop = getattr(cv2, name)(late[3:, 5:], *arguments)
            assert np.array_equal(crop, OPENCVS[name](wanted[3:, 5:], *arguments)), name
    finally:
        deferred.uninstall()
