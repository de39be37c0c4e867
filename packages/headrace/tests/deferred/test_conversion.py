"""Tensors that native code makes within a `Compose` are ordinary tensors, with torchvision's values."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms import v2

from headrace._native import render
from headrace.deferred.chain import File
from support.deferred_images import with_recording
from support.equal import same
from support.jpegs import jpeg

FILES = [jpeg(np.random.default_rng(n), "4:2:0", 40 + 3 * n, 30) for n in range(4)]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SMALL = v1.Resize((7, 9))


def opened(file: int = 0) -> Image.Image:
    return Image.open(io.BytesIO(FILES[file])).convert("RGB")


class OwnToTensor(v1.ToTensor):
    """The same by another name."""


class ToLevels(v1.ToTensor):
    def __call__(self, pic: Any) -> Any:
        return super().__call__(pic) * 255


NATIVE: dict[str, Any] = {
    "ToTensor": v1.Compose([SMALL, v1.ToTensor()]),
    "Normalize": v1.Compose([SMALL, v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    "in a tuple": v1.Compose((SMALL, v1.ToTensor(), v1.Normalize(MEAN, STD))),
    "normalized in place": v1.Compose([SMALL, v1.ToTensor(), v1.Normalize(tuple(MEAN), STD, True)]),
    "one mean for all": v1.Compose([SMALL, v1.ToTensor(), v1.Normalize([0.5], [0.25])]),
    "means in a tensor": v1.Compose(
        [SMALL, v1.ToTensor(), v1.Normalize(torch.tensor(MEAN), torch.tensor(STD))]
    ),
    "a subclass that changes nothing": v1.Compose([SMALL, OwnToTensor(), v1.Normalize(MEAN, STD)]),
    "normalized twice": v1.Compose(
        [SMALL, v1.ToTensor(), v1.Normalize([0.5] * 3, [0.5] * 3), v1.Normalize(MEAN, STD)]
    ),
    "float16": v1.Compose([SMALL, v1.PILToTensor(), v1.ConvertImageDtype(torch.float16)]),
    "bfloat16": v2.Compose([SMALL, v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True)]),
    "values up to 255": v2.Compose([SMALL, v2.PILToTensor(), v2.ToDtype(torch.float32)]),
    "v2": v2.Compose([SMALL, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]),
    "v2, a pure tensor": v2.Compose(
        [SMALL, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()]
    ),
    "erased": v1.Compose([SMALL, v1.ToTensor(), v1.Normalize(MEAN, STD), v1.RandomErasing(1.0)]),
    "a Compose in a Compose": v1.Compose([SMALL, v1.Compose([v1.ToTensor(), v1.Normalize(MEAN, STD)])]),
    "a subclass of Compose": type("Own", (v1.Compose,), {})([SMALL, v1.ToTensor()]),
    "something else after it": v1.Compose(
        [SMALL, v1.ToTensor(), lambda x: x.flip(2), v1.Normalize(MEAN, STD)]
    ),
    "two columns": v1.Compose([v1.Resize((2, 2)), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
}


def _hooked(hook: Any) -> v1.Normalize:
    normalize = v1.Normalize(MEAN, STD)
    normalize.register_forward_hook(hook)
    return normalize


def _replaced() -> v1.Normalize:
    normalize: Any = v1.Normalize(MEAN, STD)
    normalize.forward = lambda x: x * 3
    return normalize


class Tripled(v1.Normalize):
    def forward(self, tensor: Any) -> Any:
        return super().forward(tensor) * 3


# How many of these are made natively: the conversion alone, or nothing.
PARTLY: dict[str, tuple[Any, int]] = {
    "a hook": (v1.Compose([SMALL, v1.ToTensor(), _hooked(lambda *args: args[-1] * 2)]), 1),
    "another forward": (v1.Compose([SMALL, v1.ToTensor(), _replaced()]), 1),
    "a subclass of Normalize": (v1.Compose([SMALL, v1.ToTensor(), Tripled(MEAN, STD)]), 1),
    "a mean for each column": (
        v1.Compose([v1.Resize((4, 256)), v1.ToTensor(), v1.Normalize(torch.rand(1, 1, 256), torch.ones(1))]),
        1,
    ),
    "uint8": (v2.Compose([SMALL, v2.ToImage()]), 0),
    "int64": (v2.Compose([SMALL, v2.ToImage(), v2.ToDtype(torch.int64)]), 0),
    "float64": (v2.Compose([SMALL, v2.ToImage(), v2.ToDtype(torch.float64, scale=True)]), 0),
    "dtypes by class": (
        v2.Compose([SMALL, v2.ToImage(), v2.ToDtype({tv_tensors.Image: torch.float32}, scale=True)]),
        0,
    ),
    "a subclass that changes something": (v1.Compose([SMALL, ToLevels()]), 0),
    "one channel": (v1.Compose([SMALL, v1.Grayscale(), v1.ToTensor()]), 0),
    "one column": (v1.Compose([v1.Resize((3, 1)), v1.ToTensor()]), 0),
    "one row": (v2.Compose([v1.Resize((1, 3)), v2.ToImage(), v2.ToDtype(torch.float32)]), 0),
    "one pixel": (v1.Compose([v1.Resize((1, 1)), v1.ToTensor()]), 0),
    "a list of modules": (v1.Compose(nn.ModuleList([v2.Resize((5, 5)), v2.ToImage()])), 0),
    "normalized without deviation": (v1.Compose([SMALL, v1.ToTensor(), v1.Normalize(MEAN, [0.0] * 3)]), 0),
    "normalized as uint8": (v1.Compose([SMALL, v1.PILToTensor(), v1.Normalize(MEAN, STD)]), 0),
    "four means": (v1.Compose([SMALL, v1.ToTensor(), v1.Normalize([0.5] * 4, [0.5] * 4)]), 1),
    "nothing to call": (v1.Compose([SMALL, v1.ToTensor(), 3]), 1),
    "no transforms": (v1.Compose([]), 0),
}


def outcome(transform: Any, file: int = 0) -> Any:
    """What a transform gives for an image, in all its parts; or its error."""
    torch.manual_seed(file)
    try:
        tensor = transform(opened(file))
    except Exception as error:
        return type(error), str(error)
    return facts(tensor)


def bits_of(x: torch.Tensor) -> bytes:
    plain = x.detach().as_subclass(torch.Tensor).reshape(-1).clone()
    return bytes(plain.view(torch.uint8).numpy().tobytes())


def facts(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return type(x), np.asarray(x).tobytes()
    storage = x.untyped_storage()
    return {
        "class": type(x),
        "layout": (x.dtype, x.shape, x.stride(), x.storage_offset(), storage.nbytes(), x.is_contiguous()),
        "place": (x.device, x.is_shared(), x.is_pinned()),
        "gradient": (x.requires_grad, x.is_leaf, x.grad, x.grad_fn, x.is_inference()),
        "attributes": vars(x),
        "values": None if x.is_meta else bits_of(x),
    }


@pytest.mark.parametrize("name", NATIVE)
def test_a_tensor_made_natively_is_torchvisions_in_all_its_parts(name: str) -> None:
    wanted = [outcome(NATIVE[name], file) for file in range(4)]
    found, made = with_recording(lambda: [outcome(NATIVE[name], file) for file in range(4)])
    assert found == wanted
    assert made == 4


@pytest.mark.parametrize("name", PARTLY)
def test_what_native_code_does_not_make_is_made_as_it_is_written(name: str) -> None:
    transform, natively = PARTLY[name]
    wanted = [outcome(transform, file) for file in range(2)]
    found, made = with_recording(lambda: [outcome(transform, file) for file in range(2)])
    assert found == wanted
    assert made == 2 * natively


def test_images_of_other_formats_are_converted_natively_as_well() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8))
    transform = NATIVE["Normalize"]
    wanted = facts(transform(image))
    assert with_recording(lambda: facts(transform(image))) == (wanted, 1)


def test_a_transform_may_change_the_list_that_it_is_in() -> None:
    def run() -> Any:
        steps: list[Any] = [SMALL, v1.ToTensor()]
        steps.insert(0, lambda image: (steps.extend([v1.Normalize(MEAN, STD)]), image)[1])  # type: ignore[func-returns-value]
        steps.append(lambda tensor: (steps.extend([lambda x: x + 1]), tensor)[1])  # type: ignore[func-returns-value]
        return facts(v1.Compose(steps)(opened())), len(steps)

    assert with_recording(run)[0] == run()


def test_settings_that_change_later_are_read_at_every_call() -> None:
    def run() -> Any:
        normalize = v1.Normalize([0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
        compose, found = v1.Compose([v1.ToTensor(), normalize]), []
        for value in (0.1, 0.9):
            normalize.mean[:] = [value] * 3
            found.append(facts(compose(opened())))
        normalize.std = (0.5, 0.5, 0.5)  # type: ignore[assignment]
        compose.transforms.append(v1.Normalize([1.0], [2.0]))
        return [*found, facts(compose(opened()))]

    assert with_recording(run)[0] == run()


@pytest.mark.parametrize("name", ["Normalize", "v2"])
def test_modes_of_torch_count_where_the_tensor_is_made(name: str) -> None:
    def run() -> Any:
        found = []
        with torch.inference_mode():
            found.append(outcome(NATIVE[name]))
        with torch.device("meta"):
            found.append(outcome(NATIVE[name]))
            found.append(torch.zeros(1, 3, 5, 4).device)
        torch.set_default_dtype(torch.float64)
        try:
            found.append(outcome(NATIVE[name]))
        finally:
            torch.set_default_dtype(torch.float32)
        return [*found, outcome(NATIVE[name])]

    assert with_recording(run)[0] == run()


USES: dict[str, Callable[[Any], Any]] = {
    "kept and changed": lambda x: (x, x.mul_(2), x[0].zero_()),
    "its memory as an array": lambda x: (x.numpy().fill(3), x),
    "a parameter": lambda x: nn.Parameter(x).requires_grad,
    "gradients": lambda x: (x.requires_grad_() * 2).sum().backward() or x.grad,
    "changed in place as a leaf": lambda x: _error(lambda: x.requires_grad_().add_(1)),
    "pickled": lambda x: pickle.loads(pickle.dumps(x)),
    "copied": lambda x: (copy.copy(x), copy.deepcopy(x)),
    "saved": lambda x: _saved(x),
    "as a key": lambda x: {x: 1}[x],
    "smaller": lambda x: x.resize_(9, 3),
    "in a scripted function": lambda x: torch.jit.script(_doubled)(x),
    "in a traced function": lambda x: torch.jit.trace(_doubled, (x,))(x),
    "by torch.func": lambda x: torch.func.vmap(_doubled)(x),
    "exchanged with NumPy": lambda x: torch.from_dlpack(x.numpy()) + torch.from_dlpack(x),
}


def _error(action: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as caught:
        action()
    return str(caught.value)


def _saved(x: Any) -> Any:
    file = io.BytesIO()
    torch.save({"x": x}, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)["x"]


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", ["Normalize", "float16", "v2", "v2, a pure tensor"])
def test_a_tensor_made_natively_is_used_like_any_other(name: str, use: str) -> None:
    def run() -> Any:
        return comparable(USES[use](NATIVE[name](opened())))

    assert same(with_recording(run)[0], run())


def comparable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [comparable(each) for each in value]
    return facts(value) if isinstance(value, (torch.Tensor, np.ndarray)) else value


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_torchvisions_functions_can_be_scripted_compared_and_pickled_while_transforms_record() -> None:
    captured = (F.adjust_hue, F.gaussian_blur, F.to_tensor, F.pad, v1.Compose, v1.GaussianBlur)

    def run() -> None:
        assert captured == (F.adjust_hue, F.gaussian_blur, F.to_tensor, F.pad, v1.Compose, v1.GaussianBlur)
        assert pickle.loads(pickle.dumps(captured)) == captured
        image = torch.rand(3, 12, 10)
        steps = nn.Sequential(v1.GaussianBlur(3, 0.5), v1.RandomGrayscale(1.0), v1.Pad([2]))
        steps.append(v1.ColorJitter((1.5, 1.5), (0.5, 0.5), (2.0, 2.0), (0.1, 0.1)))
        torch.manual_seed(0)
        wanted = steps(image)
        torch.manual_seed(0)
        assert same(torch.jit.script(steps)(image), wanted)

    with_recording(run)


def _noting(decoded: list[bytes], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of a file, which is noted in `decoded`."""

    def noted(data: bytes, *rest: Any) -> Any:
        decoded.append(data)
        return function(data, *rest)

    return noted


def test_an_image_that_is_looked_at_again_and_again_is_decoded_at_most_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[bytes] = []
    for name in ("render_file", "DecodedImage"):
        monkeypatch.setattr(render, name, _noting(decoded, getattr(render, name)))

    def run() -> Any:
        image = opened()
        return [np.asarray(image.rotate(angle)).tobytes() for angle in range(5)]

    assert with_recording(run)[0] == run()
    assert len(decoded) <= 2


def test_the_files_bytes_are_held_no_longer_than_the_image_and_its_tensors() -> None:
    def files() -> list[Any]:
        gc.collect()
        return [each for each in gc.get_objects() if isinstance(each, File)]

    def run() -> None:
        kept = [NATIVE["Normalize"](opened(file)) for file in range(4)]
        batch = torch.stack(kept)
        assert len(files()) == len(kept) == 4
        del kept
        assert len(files()) == 4
        del batch
        assert not files()

    with_recording(run)


def test_threads_may_make_tensors_of_one_file_at_the_same_time() -> None:
    transform = NATIVE["Normalize"]

    def crops(image: Image.Image) -> list[Image.Image]:
        return [image.crop((left, 0, left + 20, 20)) for left in range(16)]

    wanted = [transform(crop) for crop in crops(opened())]

    def run() -> None:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(20):
                assert all(map(same, threads.map(transform, crops(opened()) * 2), wanted * 2))

    assert with_recording(run)[1] == 20 * 32
