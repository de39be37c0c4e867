"""What NumPy makes of a deferred image is what it makes of Pillow's, but its memory is filled late."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import functional as F1  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms.v2 import functional as F2  # noqa: N812

from headrace._native import deferred as memory
from headrace.deferred import arrays, images
from headrace.deferred.arrays import find
from support.deferred_images import needs_native, never_deferred
from support.equal import same
from support.odd_files import saved

FILES = {
    "RGB": saved("JPEG"),
    "L": saved("JPEG", "L"),
    "P": saved("PNG", "P"),
    "PNG": saved("PNG"),
    "WebP": saved("WEBP"),
    "one row": saved("PNG", height=1, width=4000),
    "RGBA": saved("PNG", "RGBA"),
}
DEFERRED = ("RGB", "L", "P", "PNG")


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch, recorded: None) -> None:
    monkeypatch.setattr(images, "unused", images.Counter())


def pair(name: str) -> tuple[Any, Any]:
    """A file as a deferred image, if it can be, and as Pillow decodes it."""
    ours, theirs = (Image.open(io.BytesIO(FILES[name])) for _ in range(2))
    return ours, never_deferred(theirs)


def shown(x: Any) -> Any:
    """All that the user's code may see of an array."""
    if not isinstance(x, np.ndarray):
        return x
    flags = x.flags.writeable, x.flags.c_contiguous, x.flags.f_contiguous, x.flags.aligned
    return type(x), x.dtype.str, x.shape, x.strides, flags, x.tobytes()


def outcome(call: Callable[[Any], Any], image: Any) -> Any:
    """What a call gives for an image, with the warnings before it; or its error."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = shown(call(image))
        except (ValueError, TypeError, AttributeError) as error:
            result = type(error), str(error)
    return result, [str(each.message) for each in warned]


def made_writable(image: Any) -> Any:
    array = np.asarray(image)
    array.flags.writeable = True
    return array


def changed(image: Any) -> Any:
    array, other = np.array(image), np.array(image)
    array[2:5] = 7
    return np.concatenate([array, other, np.asarray(image)])


def changed_image(image: Any) -> Any:
    array = np.asarray(image)
    image.putpixel((3, 0), image.getpixel((0, 0)))
    return np.stack([array, np.asarray(image)])


CALLS: dict[str, Callable[[Any], Any]] = {
    "asarray": np.asarray,
    "array": np.array,
    "array, copied": lambda image: np.array(image, copy=True),
    "array, not copied": lambda image: np.array(image, copy=False),
    "uint8": lambda image: np.array(image, np.uint8, copy=True),
    "float32": lambda image: np.asarray(image, np.float32),
    "dtype='float16'": lambda image: np.asarray(image, dtype="float16"),
    "float32, not copied": lambda image: np.array(image, np.float32, copy=False),
    "int64": lambda image: np.array(image, dtype=np.int64),
    "float64": lambda image: np.array(image, float),
    "int16": lambda image: np.array(image, np.int16),
    "the other byte order": lambda image: np.asarray(image, ">f4"),
    "bool": lambda image: np.asarray(image, bool),
    "Fortran's order": lambda image: np.array(image, order="F"),
    "more axes": lambda image: np.array(image, ndmin=4),
    "atleast_3d": np.atleast_3d,
    "ascontiguousarray": np.ascontiguousarray,
    "require": lambda image: np.require(image, requirements=["W", "O"]),
    "a list": lambda image: np.array([image, image]),
    "stack": lambda image: np.stack([image, image]),
    "mean": np.mean,
    "a ufunc": lambda image: np.add(image, 1),
    "a crop": lambda image: np.asarray(image)[1:9, ::-1],
    "read-only": made_writable,
    "changed": changed,
    "a changed image": changed_image,
    "twice": lambda image: np.concatenate([np.asarray(image), np.asarray(image)]),
    "after a crop": lambda image: np.asarray(image.crop((0, 0, 40, 1))),
    "after a resize": lambda image: np.array(image.resize((33, 21))),
    "pickled": lambda image: pickle.loads(pickle.dumps(np.array(image))),
    "deepcopy": lambda image: copy.deepcopy(np.asarray(image)),
    "by its attribute": lambda image: sorted(image.__array_interface__.items()),
    "by another one": lambda image: (hasattr(image, "__array__"), hasattr(image, "__array_interface__")),
    "called": lambda image: image.__array__(),
    "fromarray": lambda image: np.asarray(Image.fromarray(np.asarray(image))),
    "a tensor": lambda image: torch.from_numpy(np.array(image)).numpy(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", FILES)
def test_numpy_gives_what_it_gives_for_pillows_images(name: str, call: str) -> None:
    ours, theirs = pair(name)
    assert outcome(CALLS[call], ours) == outcome(CALLS[call], theirs)


@pytest.mark.parametrize("name", DEFERRED)
def test_arrays_are_filled_when_they_are_touched(name: str) -> None:
    image = pair(name)[0]
    needs_native(image.format)
    wanted = np.asarray(pair(name)[1])
    array = np.array(image.copy())
    other = np.asarray(image.copy(), np.float32)
    assert find(array) is not None
    assert find(other) is not None
    image.close()
    del image
    assert np.array_equal(array, wanted)
    assert np.array_equal(other, wanted)
    gc.collect()
    live = memory.counts().live
    del array, other
    assert memory.counts().live == live - 2


@pytest.mark.parametrize(
    "made", [np.asarray, lambda image: image, lambda image: torch.from_numpy(np.array(image)).float()]
)
def test_numpy_saves_what_was_not_touched(made: Callable[[Any], Any], tmp_path: Path) -> None:
    ours, theirs = pair("RGB")
    np.save(tmp_path / "ours.npy", made(ours))
    assert np.array_equal(np.load(tmp_path / "ours.npy"), np.asarray(theirs))


def test_an_image_that_is_read_again_is_decoded_once() -> None:
    image = pair("RGB")[0]
    assert find(np.asarray(image)) is not None
    assert find(np.asarray(image)) is None


def test_arrays_that_are_always_touched_are_filled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MOST_UNUSED", 3)
    arrays_ = [np.asarray(pair("RGB")[0]) for _ in range(3)]
    assert torch.stack([torch.from_numpy(array.copy()) for array in arrays_]).shape[0] == 3
    assert find(np.asarray(pair("RGB")[0])) is None
    assert shown(np.array(pair("RGB")[0])) == shown(np.array(pair("RGB")[1]))


# --- datasets as they are written ---------------------------------------------------------------------------

Chain = list[Callable[[Any], Any]]
BEGINNINGS: dict[str, Callable[[Any], Any]] = {
    "to_tensor": F1.to_tensor,
    "pil_to_tensor": F1.pil_to_tensor,
    "to_image": F2.to_image,
    "v2's pil_to_tensor": F2.pil_to_tensor,
    "from_numpy": lambda image: torch.from_numpy(np.array(image)),
    "as_tensor": lambda image: torch.as_tensor(np.array(image, copy=True)).permute(2, 0, 1),
    "transposed": lambda image: torch.from_numpy(np.array(image).transpose(2, 0, 1)),
    "float array": lambda image: torch.from_numpy(np.array(image, dtype=np.float32)).permute(2, 0, 1),
}
# Each is for a tensor of any dtype with three axes of length 2 or more.
STEPS: dict[str, Callable[[Any], Any]] = {
    "float": lambda x: x.float(),
    "to": lambda x: x.to(torch.float32),
    "to dtype=": lambda x: x.to(dtype=torch.float16),
    "to nothing": lambda x: x.to("cpu").to(x.dtype),
    "to another's": lambda x: x.to(torch.zeros(1, dtype=torch.bfloat16)),
    "to a copy": lambda x: x.to(torch.float32, copy=True),
    "long": lambda x: x.long(),
    "to double": lambda x: x.to(torch.float64),
    "/ 255": lambda x: x / 255,
    "/ 255.0": lambda x: x / 255.0,
    "div": lambda x: x.div(255),
    "div, rounded": lambda x: x.div(2, rounding_mode="floor"),
    "/ -0.0": lambda x: (x / -0.0).nan_to_num(7),
    "/ 0.0": lambda x: (x / 0.0).nan_to_num(7),
    "/ a tensor": lambda x: x / torch.tensor(2.0),
    "/ a list": lambda x: x / torch.arange(1.0, x.shape[-1] + 1),
    "/ True": lambda x: x / True,
    "/ a text": lambda x: x / "2",
    "/=": lambda x: x.float().div_(3),
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x[None].contiguous(memory_format=torch.channels_last)[0],
    "crop": lambda x: x[:, : x.shape[1] // 2 + 1, 1:],
    "permute": lambda x: x.permute(1, 2, 0),
    "permute back": lambda x: x.permute(2, 0, 1),
    "clone": lambda x: x.clone(),
    "as int8": lambda x: x.view(torch.int8),
    "hflip": F1.hflip,
    "vflip": F1.vflip,
    "normalize": lambda x: F1.normalize(x.float(), [0.485, 0.456, 0.406], (0.229, 0.224, 0.225)),
    "normalize by one": lambda x: F1.normalize(x.float(), [0.5], [0.5]),
    "normalize in place": lambda x: F1.normalize(x.float(), [0.1], [0.3], inplace=True),
    "convert_image_dtype": lambda x: F1.convert_image_dtype(x, torch.float32),
    "resize": lambda x: F1.resize(x, [9, 8], antialias=True),
    "resized crop": lambda x: F2.resized_crop(x, 1, 2, 5, 4, [9, 8]),
    "resized row": lambda x: F2.resized_crop(x, 1, 1, 1, 4, [9, 8]),
    "resized pixel": lambda x: F2.resized_crop(x, 1, 1, 1, 1, [9, 8]),
    "v1's crop": lambda x: F1.crop(x, 1, 1, 3, 4),
    "brightness": lambda x: F2.adjust_brightness(x, 1.3),
    "brightness by an integer": lambda x: F2.adjust_brightness(x, 2),
    "contrast": lambda x: F2.adjust_contrast(x, 0.7),
    "saturation": lambda x: F2.adjust_saturation(x, 1.6),
    "hue": lambda x: F2.adjust_hue(x, -0.2),
    "invert": F2.invert,
    "posterize": lambda x: F2.posterize(x, 3),
    "solarize": lambda x: F2.solarize(x, 100),
    "a change": lambda x: x.mul_(2),
    "a changed view": lambda x: (x[1].fill_(3), x)[1],
}


def after(x: Any, beginning: str, names: list[str]) -> Any:
    """A tensor after some steps, or the error of one of them."""
    try:
        x = BEGINNINGS[beginning](x)
        for name in names:
            x = STEPS[name](x)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        return type(error), str(error)
    return x


@pytest.mark.filterwarnings("ignore")
@given(st.sampled_from(sorted(BEGINNINGS)), st.lists(st.sampled_from(sorted(STEPS)), max_size=6))
@example("to_image", ["hflip"])
@example("to_image", ["crop", "resized row"])
@example("to_image", ["crop", "resized pixel"])
@example("to_image", ["to", "normalize"])
@example("to_tensor", ["/ a text"])
@example("from_numpy", ["as int8", "float"])
def test_tensors_made_of_arrays_are_those_that_pillows_images_give(beginning: str, names: list[str]) -> None:
    ours, theirs = (after(image.convert("RGB"), beginning, names) for image in pair("RGB"))
    if isinstance(theirs, torch.Tensor) and theirs.is_floating_point():
        ours, theirs = ours.nan_to_num(0.25), theirs.nan_to_num(0.25)
    assert same(ours, theirs), (beginning, names)


@pytest.mark.filterwarnings("ignore")
@given(st.lists(st.sampled_from(["float", "long", "to", "/ 255", "div", "contiguous", "/ 0.0"]), max_size=4))
def test_gray_images_are_the_same_as_well(names: list[str]) -> None:
    for beginning in ("to_tensor", "pil_to_tensor", "from_numpy"):
        ours, theirs = (after(image, beginning, names) for image in pair("L"))
        assert same(ours, theirs), (beginning, names)


WRITTEN: dict[str, Callable[[Any], Any]] = {
    "to_tensor": F1.to_tensor,
    "normalized": lambda image: F1.normalize(F1.to_tensor(image), [0.4] * 3, [0.2] * 3),
    "v1's functions": lambda image: F1.hflip(F1.crop(F1.pil_to_tensor(image), 3, 5, 40, 50)),
    "v2's functions": lambda image: F2.to_dtype(F2.to_image(image), torch.float32, scale=True),
    "from_numpy": lambda image: torch.from_numpy(np.asarray(image)).permute(2, 0, 1).float() / 255,
    "by hand": lambda image: torch.from_numpy(np.array(image).transpose(2, 0, 1)).float().div(255),
    "planes": lambda image: torch.as_tensor(np.array(image)).permute(2, 0, 1).contiguous(),
    "floats first": lambda image: torch.from_numpy(np.array(image)).float().permute(2, 0, 1),
    "colors": lambda image: F2.adjust_hue(F2.adjust_saturation(F2.to_image(image), 0.5), 0.1),
    "levels": lambda image: F2.solarize(F2.posterize(F2.invert(F2.pil_to_tensor(image)), 4), 99),
}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("name", WRITTEN)
def test_what_most_datasets_do_leaves_a_deferred_tensor(name: str) -> None:
    ours, theirs = (WRITTEN[name](image.convert("RGB")) for image in pair("RGB"))
    assert find(ours.as_subclass(torch.Tensor)) is not None
    assert same(ours, theirs)


def test_the_default_dtype_counts() -> None:
    late, ordinary = (F1.pil_to_tensor(image) for image in pair("RGB"))
    usual = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.float16):
            torch.set_default_dtype(dtype)
            assert same(late / 255, ordinary / 255)
    finally:
        torch.set_default_dtype(usual)


UNCHANGING: tuple[Callable[[Any], Any], ...] = (
    *(lambda x: F2.to_dtype(x, x.dtype), lambda x: x.to(x.dtype), lambda x: x.long(), lambda x: x.float()),
    *(lambda x: F2.resize(x, list(x.shape[1:])), lambda x: x.contiguous(), lambda x: x.to("cpu")),
    lambda x: F1.convert_image_dtype(x, x.dtype),
)


def test_steps_that_change_nothing_give_the_tensor_itself() -> None:
    ours, theirs = (F1.pil_to_tensor(image) for image in pair("RGB"))
    for convert in (lambda x: x, lambda x: x.float().contiguous(), lambda x: x.long()):
        both = [[step(x) is x for step in UNCHANGING] for x in map(convert, (ours, theirs))]
        assert both[0] == both[1]


def test_methods_give_subclasses_as_torchs_own_do() -> None:
    class Own(torch.Tensor):
        pass

    kinds = []
    for image in pair("RGB"):
        x = torch.from_numpy(np.array(image)).as_subclass(Own)
        image = F2.to_image(image)
        kinds.append([type(each) for each in (image.to(torch.float32), image.float(), x.float() / 2)])
    assert kinds[0] == kinds[1]


def test_functions_on_tensors_compile_to_one_graph() -> None:
    def changed(x: torch.Tensor) -> torch.Tensor:
        return F2.to_dtype(F2.horizontal_flip(x), torch.float32, scale=True) / 2

    late, ordinary = (F1.pil_to_tensor(image) for image in pair("RGB"))
    assert torch.equal(torch.compile(changed, backend="eager", fullgraph=True)(late), changed(ordinary))


@pytest.mark.filterwarnings("ignore")
def test_torchscript_compiles_what_is_replaced() -> None:
    class Written(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F1.normalize(F1.vflip(F1.hflip(x.float().div(255).contiguous())), [0.5], [0.5]) / 2

    late, ordinary = (F1.pil_to_tensor(image) for image in pair("RGB"))
    traced = torch.jit.trace(Written(), (late,))
    assert torch.equal(torch.jit.script(Written())(late), Written()(ordinary))
    assert torch.equal(traced(ordinary + 1), Written()(ordinary + 1))
