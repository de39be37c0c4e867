"""torchvision's functions on tensors that nobody has touched give what they give on ordinary ones."""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision import io as io_
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F  # noqa: N812  (torchvision's own name for it)

from headrace.decoding import by_torchvision, decodes_as_pillow
from headrace.deferred import recording
from headrace.deferred.arrays import Recipe, recipe_of
from headrace.deferred.chain import Chain, File
from headrace.deferred.steps import RGB_ROWS, Store
from headrace.transforms.on_tensors import torch_resizes_as_expected
from headrace.transforms.reading import TENSOR_FILTERS
from support.equal import same
from support.jpegs import JPEG_KINDS, cmyk, jpeg

WIDTH, HEIGHT = 83, 57
FILE = jpeg(np.random.default_rng(1), "4:2:0", WIDTH, HEIGHT)
PIXELS = np.asarray(Image.open(io.BytesIO(FILE)).convert("RGB"))
STORES = (Store(None, 0, False), RGB_ROWS)  # planes, and a view of rows of pixels
NEAREST, BILINEAR, BICUBIC = MODES = (
    InterpolationMode.NEAREST,
    InterpolationMode.BILINEAR,
    InterpolationMode.BICUBIC,
)

Step = tuple[str, Callable[[Any], Any]]


pytestmark = pytest.mark.usefixtures("recorded")


def pair(store: Store) -> tuple[torch.Tensor, torch.Tensor]:
    """A deferred tensor, and an ordinary one with the same values and strides."""
    late = Recipe(Chain.whole(File(FILE, (WIDTH, HEIGHT)), "RGB"), store, "CHW").tensor()
    assert late is not None
    ordinary = torch.from_numpy(PIXELS.copy()).permute(2, 0, 1)
    return late, ordinary if store.rows_of_pixels else ordinary.contiguous()


sizes = st.integers(2, 70)
modes = st.sampled_from(MODES)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """A function that may be called with an image of any size from 2 × 2 on, and its name."""
    name = draw(st.sampled_from(("resize", "shorter", "resized_crop", "crop", "flip", "levels", "add")))
    if name == "resize":
        size, mode = [draw(sizes), draw(sizes)], draw(modes)
        return name, lambda x: F.resize(x, size, mode)
    if name == "shorter":
        edge, mode = draw(sizes), draw(modes)
        limit = draw(st.none() | st.integers(edge + 1, 90))
        return name, lambda x: F.resize(x, [edge], mode, max_size=limit)
    if name == "resized_crop":
        size, mode, share = [draw(sizes), draw(sizes)], draw(modes), draw(st.floats(0, 1))

        def crop_and_resize(x: Any) -> Any:
            height, width = F.get_size(x)
            rows, columns = max(2, int(height * share)), max(2, int(width * (1 - share / 2)))
            return F.resized_crop(x, height - rows, (width - columns) // 2, rows, columns, size, mode)

        return name, crop_and_resize
    if name == "crop":
        size, center = [draw(sizes), draw(sizes)], draw(st.booleans())
        return name, lambda x: F.center_crop(x, size) if center else F.crop(x, 1, 2, *size)
    if name == "flip":
        return name, draw(st.sampled_from((F.horizontal_flip, F.vertical_flip)))
    if name == "levels":
        dtype = draw(st.sampled_from((torch.float32, torch.float16, torch.bfloat16, torch.float64)))
        mean = draw(st.lists(st.floats(-1, 1), min_size=3, max_size=3))
        return name, lambda x: F.normalize(F.to_dtype(x, dtype, scale=True), mean, [0.25, 0.5, 2.0])
    return name, lambda x: x + 1  # which isn't recorded


def after(x: Any, chain: list[Step]) -> Any:
    """`x` after all steps, or the error of one of them."""
    try:
        for _, step in chain:
            x = step(x)
    except RuntimeError as error:  # such as a size of 0
        return str(error)
    return x


@given(
    st.sampled_from(STORES),
    st.lists(steps(), min_size=1, max_size=5),
    st.sampled_from(("tensor", "image", "batch")),
)
def test_chains_of_functions_give_what_they_give_on_ordinary_tensors(
    store: Store, chain: list[Step], kind: str
) -> None:
    late, ordinary = pair(store)
    both: list[Any] = [late, ordinary]
    if kind == "image":
        both = [tv_tensors.Image(each) for each in both]
    elif kind == "batch":
        both = [each.unsqueeze(0) for each in both]
    ours, theirs = (after(x, chain) for x in both)
    if isinstance(theirs, str):
        assert ours == theirs
        return
    assert type(ours) is type(theirs)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    if min(ours.shape[-2:]) > 1:
        assert ours.stride()[-3:] == theirs.stride()[-3:]
    assert torch.equal(ours.as_subclass(torch.Tensor), theirs.as_subclass(torch.Tensor))


@pytest.mark.skipif(
    not torch_resizes_as_expected(TENSOR_FILTERS[BILINEAR]),
    reason="this torch resizes uint8 tensors in float32",
)
def test_a_preset_for_evaluation_leaves_a_deferred_tensor() -> None:
    late, ordinary = pair(STORES[0])

    def preset(x: Any) -> Any:
        x = F.resize(x, [40], BILINEAR, antialias=True)
        x = F.center_crop(x, [32])
        x = F.to_dtype(x, torch.float32, scale=True)
        return F.normalize(x, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])

    result = preset(late)
    assert recipe_of(result) is not None
    assert torch.equal(result, preset(ordinary))


def test_transforms_as_classes_leave_a_deferred_tensor() -> None:
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(20, interpolation=BICUBIC),
            v2.RandomHorizontalFlip(),
            v2.Resize([9, 8], BICUBIC),
        ]
    )
    late, ordinary = pair(RGB_ROWS)
    torch.manual_seed(3)
    result = transform(late)
    assert recipe_of(result) is not None
    torch.manual_seed(3)
    assert torch.equal(result, transform(ordinary))


def test_a_tensor_that_was_changed_is_not_taken_for_its_file() -> None:
    late, ordinary = pair(STORES[0])
    for x in (late, ordinary):
        x[:, 3:9, 5:20] = 7
    assert torch.equal(F.resize(late, [20, 30]), F.resize(ordinary, [20, 30]))
    assert torch.equal(F.horizontal_flip(late), F.horizontal_flip(ordinary))


def test_changes_of_a_tensor_do_not_change_what_was_made_of_it_before() -> None:
    late, ordinary = pair(STORES[0])
    smaller = F.resize(late, [20, 30])
    late.zero_()
    assert torch.equal(smaller, F.resize(ordinary, [20, 30]))


def test_statistics_that_print_alike_are_told_apart() -> None:
    wide = torch.rand(1, 1, WIDTH)  # one for each column
    for mean in (torch.tensor([0.48501] * 3), torch.tensor([0.48502] * 3), wide):
        late, ordinary = (F.to_dtype(x, torch.float32, scale=True) for x in pair(STORES[0]))
        assert torch.equal(F.normalize(late, mean, [0.5] * 3), F.normalize(ordinary, mean, [0.5] * 3))


def test_corners_of_other_integers_are_those_of_pixels() -> None:
    late, ordinary = (x[:, 5:, 20:] for x in pair(STORES[0]))
    corners = np.uint8(30), np.uint8(40), np.uint8(10), np.uint8(20)
    assert torch.equal(F.resized_crop(late, *corners, [9, 9]), F.resized_crop(ordinary, *corners, [9, 9]))


@pytest.mark.parametrize("kind", ["Tensor", "TVTensor"])
def test_stacks_of_images_have_the_class_that_torchvision_was_told(kind: Any) -> None:
    classes = []
    with tv_tensors.set_return_type(kind):
        for x in pair(STORES[0]):
            classes.append(type(torch.stack([tv_tensors.Image(x)] * 2)))
    assert classes[0] is classes[1]


@pytest.mark.filterwarnings("ignore:.torch.jit.trace")
def test_a_trace_follows_its_inputs() -> None:
    late, ordinary = pair(STORES[0])
    traced = torch.jit.trace(lambda x: F.horizontal_flip(x), (late,))
    assert torch.equal(traced(ordinary + 5), F.horizontal_flip(ordinary + 5))


def test_in_place_steps_change_the_tensor_itself() -> None:
    late, ordinary = pair(STORES[0])
    results = []
    for x in (late, ordinary):
        values = F.to_dtype(x, torch.float32, scale=True)
        F.normalize(values, [0.5] * 3, [0.5] * 3, inplace=True)
        results.append(values)
    assert torch.equal(*results)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.resize(x, [0, 5]),
        lambda x: F.resize(x, [9], max_size=5),
        lambda x: F.normalize(x, [0.5], [0.5]),
        lambda x: F.normalize(F.to_dtype(x, torch.float32), [0.5] * 3, [0.0] * 3),
        lambda x: F.normalize(F.to_dtype(x, torch.float32), [0.5] * 2, [0.5] * 2),
    ],
)
def test_wrong_arguments_raise_the_same_error(call: Callable[[Any], Any]) -> None:
    errors = []
    for x in pair(STORES[0]):
        with pytest.raises((ValueError, TypeError, RuntimeError)) as caught:
            call(x)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]


FILES = [
    *(jpeg(np.random.default_rng(n), kind, 60 + n, 47) for n, kind in enumerate(JPEG_KINDS)),
    *(jpeg(np.random.default_rng(9), "4:2:0", 3, 2), cmyk(np.random.default_rng(1), 33, 21)),
    *(FILE[: len(FILE) // 2], FILE[:-2], b"", b"\xff\xd8\xff", b"GIF89a"),
]
WAYS: dict[str, Callable[[torch.Tensor, str], Any]] = {
    "decode_image": lambda data, _: io_.decode_image(data),
    "decode_image of a path": lambda _, path: io_.decode_image(path, mode="RGB"),
    "upright": lambda data, _: io_.decode_image(data, io_.ImageReadMode.RGB, apply_exif_orientation=True),
    "gray": lambda data, _: io_.decode_image(data, "GRAY"),
    "read_image": lambda _, path: io_.read_image(path, io_.ImageReadMode.RGB),
    "decode_jpeg": lambda data, _: io_.decode_jpeg(data),
    "decode_jpeg of a list": lambda data, _: io_.decode_jpeg([data, data], io_.ImageReadMode.RGB),
    "no mode": lambda data, _: io_.decode_image(data, "BLUE"),
}


def read(way: str, data: bytes, path: Path) -> Any:
    """What a function of torchvision's gives for a file, with the warnings before it; or its error."""
    path.write_bytes(data)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            read = WAYS[way](torch.frombuffer(bytearray(data), dtype=torch.uint8), str(path))
        except (RuntimeError, ValueError, KeyError) as error:
            read = type(error), str(error).split("\n", maxsplit=1)[0]
    said = [(each.category, str(each.message)) for each in warned]
    tensors = read if isinstance(read, list) else [read]
    shown = [
        (type(x), x.dtype, x.shape, x.stride(), x) if isinstance(x, torch.Tensor) else x for x in tensors
    ]
    return said, shown


@pytest.mark.parametrize("way", WAYS)
def test_files_are_read_as_torchvision_reads_them(way: str, tmp_path: Path) -> None:
    ours = [read(way, data, tmp_path / "a") for data in FILES]
    recording.stop()
    theirs = [read(way, data, tmp_path / "a") for data in FILES]
    assert same(ours, theirs)


@pytest.mark.skipif(
    not decodes_as_pillow(by_torchvision), reason="this torchvision has another libjpeg than Pillow"
)
def test_files_of_usual_jpegs_are_decoded_when_they_are_touched() -> None:
    data = torch.frombuffer(bytearray(FILE), dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = io_.decode_image(data, "RGB")
        scripted = torch.jit.script(io_.decode_jpeg)(data)
    data.zero_()
    crop = F.resized_crop(x, 3, 5, 40, 50, [24, 24], BICUBIC)
    assert recipe_of(crop) is not None
    assert torch.equal(x.permute(1, 2, 0), torch.from_numpy(PIXELS.copy()))
    assert torch.equal(scripted, x)


@pytest.mark.long
@given(st.integers(0, len(FILE) - 3), st.integers(0, 255), st.sampled_from(range(3)))
def test_damaged_files_are_read_as_torchvision_reads_them(at: int, level: int, which: int) -> None:
    data = bytearray(FILES[which])
    data[at % len(data)] = level
    with tempfile.TemporaryDirectory() as folder:
        ours = read("decode_image", bytes(data), Path(folder) / "a")
        recording.stop()
        theirs = read("decode_image", bytes(data), Path(folder) / "a")
        recording.start()
    assert same(ours, theirs)
