"""Arrays and tensors on deferred memory are ordinary ones, and are recognized until somebody touches them."""

from __future__ import annotations

import gc
import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from headrace._native import deferred as memory
from headrace.deferred import arrays, recording
from headrace.deferred.arrays import Recipe, recipe_of
from headrace.deferred.chain import Chain, File
from headrace.deferred.steps import BGR_ROWS, GRAY_ROWS, RGB_ROWS, Store
from headrace.transforms.colors import Grayscale
from support.jpegs import jpeg
from support.processes import exit_of_fork

WIDTH, HEIGHT = 61, 43
FILE = jpeg(np.random.default_rng(0), "4:2:0", WIDTH, HEIGHT)
PIXELS = np.asarray(Image.open(io.BytesIO(FILE)).convert("RGB"))
TABLE = torch.linspace(-2, 2, 3 * 256).view(3, 256)
RGB_PLANES = Store(None, 0, False)


def table_store(dtype: torch.dtype, *, rows: bool) -> Store:
    values = TABLE.to(dtype)
    return Store(values.data_ptr(), arrays.TENSOR_DTYPES.index(dtype), rows, values)


# Name: how values are stored, the order of axes.
LAYOUTS: dict[str, tuple[Store, str]] = {
    "RGB": (RGB_ROWS, "HWC"),
    "BGR": (BGR_ROWS, "HWC"),
    "planes": (RGB_PLANES, "CHW"),
    "planes of RGB rows": (RGB_ROWS, "CHW"),
    "gray": (GRAY_ROWS, "HW"),
    "gray with an axis for it": (GRAY_ROWS, "CHW"),
    "a gray plane": (Store(None, 0, False, channels=1), "CHW"),
    **{
        f"{str(dtype).removeprefix('torch.')} {axes}": (table_store(dtype, rows=axes == "HWC"), axes)
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
        for axes in ("CHW", "HWC")
    },
}


def whole() -> Chain:
    return Chain.whole(File(FILE, (WIDTH, HEIGHT)), "RGB")


def made(name: str, kind: str, chain: Chain | None = None) -> Any:
    recipe = Recipe(chain or whole(), *LAYOUTS[name])
    return recipe.array() if kind == "array" else recipe.tensor()


def wanted(name: str, pixels: Any = PIXELS) -> torch.Tensor:
    """The values that `made` has, of which the native code of these tests knows nothing."""
    store, axes = LAYOUTS[name]
    rgb = torch.from_numpy(pixels.copy())
    rgb = rgb.flip(2) if store.blue_first else rgb
    if store.keep is not None:
        rgb = torch.stack([store.keep[c][rgb[..., c].long()] for c in range(3)], 2)
    rgb = rgb[..., : store.channels]
    return rgb[..., 0] if axes == "HW" else rgb.permute(*("HWC".index(axis) for axis in axes))


def bits(x: Any) -> Any:
    # A copy: torch refuses negative strides, even where they mean nothing.
    tensor = torch.from_numpy(x.copy(order="C")) if isinstance(x, np.ndarray) else x.contiguous()
    return tuple(tensor.shape), tensor.dtype, tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def untouched(x: Any) -> bool:
    address = x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr()
    return memory.state(address) == memory.UNTOUCHED


KINDS = [(n, kind) for n in LAYOUTS for kind in ("array", "tensor") if "bfloat" not in n or kind == "tensor"]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_an_array_is_an_ordinary_one_that_is_filled_at_the_first_touch(name: str, kind: str) -> None:
    x = made(name, kind)
    classes: dict[str, Any] = {"array": np.ndarray, "tensor": torch.Tensor}
    assert type(x) is classes[kind]
    assert untouched(x)
    assert recipe_of(x) is not None
    if kind == "array":
        assert x.flags.writeable
        assert x.flags.aligned
    else:
        assert not x._is_view()
        assert x.untyped_storage().nbytes() == x.numel() * x.itemsize
    assert bits(x) == bits(wanted(name))
    assert recipe_of(x) is None
    x[..., 1] = 0
    assert x[..., 1].max() == 0


@st.composite
def slices(draw: Any, length: int) -> slice:
    begin = draw(st.integers(0, length - 1))
    end = draw(st.integers(begin + 1, length))
    step = draw(st.sampled_from([1, 1, 1, -1, -1, 2]))
    return slice(begin, end, step) if step > 0 else slice(end - 1, begin - 1 if begin else None, step)


@given(st.data(), st.sampled_from(KINDS), st.booleans())
def test_a_view_is_recognized_as_the_rectangle_that_it_shows_or_not_at_all(
    data: st.DataObject, named: tuple[str, str], recorded: bool
) -> None:
    name, kind = named
    chain = whole().cropped(3, 5, 53, 40)
    if recorded:
        chain = chain and chain.after(Grayscale(3), ())
    assert chain is not None
    base = made(name, kind, chain)
    views, step = [base], 1 if kind == "tensor" else -1
    for _ in range(data.draw(st.integers(1, 3))):
        view = views[-1]
        cut = []
        for length in view.shape:
            chosen = data.draw(
                st.one_of(st.just(slice(None, None, step)), slices(length), st.just(slice(None)))
            )
            cut.append(slice(None) if kind == "tensor" and (chosen.step or 1) < 0 else chosen)
        views.append(view[tuple(cut)])
    if data.draw(st.booleans()) and views[-1].ndim == 3:
        axes = data.draw(st.permutations(range(3)))
        views.append(views[-1].transpose(axes) if kind == "array" else views[-1].permute(*axes))
    recipe = recipe_of(views[-1])
    assert untouched(base)
    again = None if recipe is None else recipe.array() if kind == "array" else recipe.tensor()
    assert recipe is None or (again is not None and untouched(again))
    if recipe is not None:
        assert bits(again) == bits(views[-1])
    assert not untouched(base) or recipe is None


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_crops_mirrors_and_other_orders_of_axes_are_recognized(name: str, kind: str) -> None:
    x = made(name, kind)
    store, axes = LAYOUTS[name]
    cut = tuple({"H": slice(3, 40), "W": slice(7, 50), "C": slice(None)}[axis] for axis in axes)
    assert recipe_of(x[cut]) is not None
    if len(axes) == 3:
        other = x.transpose(1, 2, 0) if kind == "array" else x.permute(1, 2, 0)
        assert (recipe_of(other) is not None) == (axes == "CHW")
    if kind == "array":
        mirror = tuple(slice(None, None, 1 if axis == "C" else -1) for axis in axes)
        assert recipe_of(x[mirror]) is not None
        turned = tuple(slice(None, None, -1 if axis == "C" else 1) for axis in axes)
        assert (recipe_of(x[turned]) is not None) == (store.values is None)
    assert untouched(x)


def test_what_is_made_of_an_array_does_not_change_with_it() -> None:
    x = made("RGB", "array")
    recipe = recipe_of(x[2:30, 4:50])
    assert recipe is not None
    crop = recipe.array()
    assert crop is not None
    x[:] = 7
    assert (crop == PIXELS[2:30, 4:50]).all()
    assert (x == 7).all()


def test_what_takes_long_is_done_once_for_all_that_is_made_of_it() -> None:
    chain = whole().after(Grayscale(3), ())
    x = made("RGB", "array", chain)
    assert recipe_of(x[:20]) is not None
    assert recipe_of(x[20:]) is None
    assert not untouched(x)


def test_other_arrays_are_not_recognized() -> None:
    x = made("float32 CHW", "tensor")
    others = [
        *(PIXELS, PIXELS[:0], torch.zeros(3, 4, 5), torch.zeros(0), torch.empty(3, device="meta"), 3, None),
        *(x.view(torch.int32), x.detach().requires_grad_(), torch._neg_view(x), x[0], x[:2], x.flatten()),
        *(x.as_strided((3, 5, 5), (1, 61, 1)), x.to_sparse().to_sparse(), x.as_subclass(torch.nn.Parameter)),
    ]
    assert [recipe_of(other) for other in others] == [None] * len(others)
    seen = []

    def twice(row: torch.Tensor) -> torch.Tensor:
        seen.append(recipe_of(row))
        return row * 2

    torch.func.vmap(twice)(made("planes", "tensor"))
    assert seen == [None]


@pytest.mark.parametrize("size", [(WIDTH, 1), (1, HEIGHT), (1, 1)])
def test_images_of_one_row_or_column_are_left_to_the_caller(size: tuple[int, int]) -> None:
    chain = whole().cropped(0, 0, *size)
    assert chain is not None
    assert Recipe(chain, RGB_ROWS, "HWC").array() is None


def test_arrays_are_filled_at_once_if_too_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    kept = [made("RGB", "array")]
    monkeypatch.setattr(arrays, "MOST_HELD_NBYTES", File.held_nbytes + 2 * len(FILE))
    kept += [made("RGB", "array") for _ in range(5)]
    assert [memory.state(x.ctypes.data) for x in kept] == [1, 1, 1, 0, 0, 0]
    assert all((x == PIXELS).all() for x in kept)
    held = File.held_nbytes
    kept.clear()
    gc.collect()
    assert File.held_nbytes == held - 3 * len(FILE)


def test_memory_that_is_not_torchs_cannot_be_made_larger_in_place() -> None:
    x = made("planes", "tensor")
    assert bits(x.resize_(2, HEIGHT, WIDTH)) == bits(wanted("planes")[:2])
    with pytest.raises(RuntimeError, match="not resizable"):
        x.untyped_storage().resize_(1 << 20)
    with pytest.raises(RuntimeError, match="not resizable"):
        x.resize_(4, HEIGHT, WIDTH)


def test_a_stack_may_be_larger_than_an_image() -> None:
    chain = whole().resized((1600, 1600), 0)
    tensors = [made("float32 CHW", "tensor", chain) for _ in range(3)]
    recording.start()
    stack = torch.stack(tensors)
    recording.stop()
    assert untouched(stack)
    assert stack.nbytes > memory.MOST_NBYTES
    assert torch.equal(stack, torch.stack(tensors))


def test_nothing_is_left_of_an_array_that_is_gone() -> None:
    gc.collect()
    before = memory.counts().live, len(memory._pieces)
    x = made("BGR", "array")
    view = x[4:9, 2:7]
    del x
    assert len(memory._pieces) == before[1] + 1
    assert (view == PIXELS[4:9, 2:7, ::-1]).all()
    del view
    assert (memory.counts().live, len(memory._pieces)) == before


def test_ten_thousand_untouched_arrays_may_be_kept() -> None:
    file = File(FILE, (WIDTH, HEIGHT))
    chain = Chain.whole(file, "RGB").cropped(0, 0, 8, 8)
    kept = [Recipe(chain, RGB_ROWS, "HWC").array() for _ in range(13_000)]  # type: ignore[arg-type]
    for x in (*kept[::999], kept[-1]):
        assert x is not None
        assert np.array_equal(x, PIXELS[:8, :8])


def test_a_forked_child_has_its_own() -> None:
    x, y = made("RGB", "array"), made("planes", "tensor")

    def change() -> None:
        x[:] = 1
        crop = recipe_of(y[:, 2:9, 3:9])
        assert crop is not None
        assert bits(crop.tensor()) == bits(wanted("planes")[:, 2:9, 3:9])
        assert (x == 1).all()

    assert exit_of_fork(change) == 0
    assert untouched(x)
    assert (x == PIXELS).all()
