"""Pending tensors are tensors, whatever is done to them; batches of them are written natively."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, default_collate
from torch.utils.dlpack import to_dlpack
from torchvision import tv_tensors
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms.v2 import functional as F2  # noqa: N812

from headrace import lazy
from headrace.engine.error_policy import ErrorPolicyDataset
from headrace.engine.workers import transport
from headrace.engine.workers.transport import allocate
from headrace.lazy import pending as pending_module
from headrace.lazy import recording
from headrace.lazy.chain import Chain, render
from headrace.lazy.pending import PendingTensor, Recording, is_pending, made
from support.equal import same
from support.jpegs import jpeg

FILES = [jpeg(np.random.default_rng(n), "4:2:0", 40 + 3 * n, 30) for n in range(4)]


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    lazy.install()
    recording.start()
    yield
    lazy.uninstall()
    recording.stop()


def pending(file: int = 0, *, kind: str = "float") -> Any:
    image = Image.open(io.BytesIO(FILES[file])).convert("RGB").resize((9, 7), Image.Resampling.BILINEAR)
    convert = {"float": F.to_tensor, "uint8": F.pil_to_tensor, "image": F2.to_image}[kind]
    tensor = convert(image)
    assert is_pending(tensor)
    return tensor


def plain(file: int = 0, *, kind: str = "float") -> torch.Tensor:
    tensor: torch.Tensor = made(pending(file, kind=kind))
    assert type(tensor) is (tv_tensors.Image if kind == "image" else torch.Tensor)
    return tensor


def changed(tensor: Any, change: Callable[[Any], Any]) -> Any:
    return change(tensor), tensor


KNOWN: dict[str, Callable[[Any], Any]] = {
    "shape": lambda x: (x.shape, x.size(), x.size(1), x.ndim, x.dim(), len(x), x.numel()),
    "dtype": lambda x: (x.dtype, x.is_floating_point(), x.element_size(), x.is_complex()),
    "device": lambda x: (x.device, x.is_cuda, x.layout, x.is_sparse, x.is_meta),
    "gradient": lambda x: (x.requires_grad, x.is_leaf, x.grad, x.grad_fn),
    "strides": lambda x: (x.stride(), x.is_contiguous()),
}

MADE: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: (x * 2 + 1, 1 - x, x == x, x > 0.5, -x),
    "indexing": lambda x: (x[0], x[:, 2:4, ::2], x[..., None], x[x > 0.4]),
    "assignment": lambda x: changed(x, lambda x: x.__setitem__((slice(None), 0), 0)),
    "in place": lambda x: changed(x, lambda x: x.add_(1)),
    "in place, twice": lambda x: changed(x, lambda x: (x.mul_(2), x[0].zero_())[0]),
    "to its own dtype": lambda x: x.to(x.dtype),
    "float64": lambda x: x.double(),
    "memory": lambda x: (x.data_ptr() != 0, x.untyped_storage().nbytes(), x.storage_offset()),
    "numpy": lambda x: (x.numpy(), np.asarray(x), np.asarray(x, np.float64)),
    "numpy shares memory": lambda x: changed(x, lambda x: x.numpy().fill(3)),
    "list": lambda x: x.tolist(),
    "item": lambda x: (x.max().item(), float(x[0, 0, 0])),
    "text": lambda x: (repr(x), str(x), f"{x[0, 0, 0]:.3f}"),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "torch.save": lambda x: _saved(x),
    "copies": lambda x: (copy.copy(x), copy.deepcopy(x), x.detach()),
    "clone": lambda x: changed(x.clone(), lambda x: x.zero_()),
    "views": lambda x: (x.permute(1, 2, 0), x.flatten(), x.unsqueeze(0), x.view(3, -1)),
    "a view that is written to": lambda x: changed(x, lambda x: x.detach().zero_()),
    "torch.tensor": lambda x: torch.as_tensor(x) + torch.tensor(x.tolist()),
    "gradients": lambda x: _gradient(x),
    "requires_grad": lambda x: changed(x, lambda x: x.requires_grad_().requires_grad),
    "iteration": lambda x: list(x),
    "unpacking": lambda x: _channels(*x),
    "cat": lambda x: torch.cat([x, torch.ones(1, *x.shape[1:], dtype=x.dtype)]),
    "stack along another": lambda x: torch.stack([x, x], 1),
    "stack with another dtype": lambda x: torch.stack([x, torch.ones(x.shape, dtype=torch.float64)]),
    "functional": lambda x: torch.nn.functional.interpolate(x[None].float(), (3, 4)),
    "conversion to an image": lambda x: np.asarray(F.to_pil_image(x)),
    "equality": lambda x: (torch.equal(x, x), torch.allclose(x, x), hash(x) != 0, bool((x == x).all())),
    "an index": lambda x: torch.arange(999)[x.long()],
    "of a subclass": lambda x: x.as_subclass(torch.Tensor) + 1,
    "shared memory": lambda x: x.share_memory_().is_shared(),
    "resized": lambda x: changed(x, lambda x: x.resize_(4)),
    "data": lambda x: changed(x, lambda x: setattr(x, "data", torch.ones(2))),
    "an attribute": lambda x: changed(x, lambda x: setattr(x, "label", 3)),
}


def _saved(x: Any) -> Any:
    file = io.BytesIO()
    torch.save({"x": x}, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)["x"]


def _gradient(x: Any) -> Any:
    weight = torch.full((3, 1, 1), 2.0, requires_grad=True)
    (weight * x).sum().backward()
    return weight.grad


def _channels(red: Any, green: Any, blue: Any) -> Any:
    return red + green - blue


@pytest.mark.parametrize("action", KNOWN)
@pytest.mark.parametrize("kind", ["float", "uint8", "image"])
def test_what_is_known_of_a_tensor_does_not_make_it(kind: str, action: str) -> None:
    tensor = pending(kind=kind)
    assert KNOWN[action](tensor) == KNOWN[action](plain(kind=kind))
    assert is_pending(tensor)
    made(tensor)
    assert KNOWN[action](tensor) == KNOWN[action](plain(kind=kind))


@pytest.mark.parametrize("action", MADE)
@pytest.mark.parametrize("kind", ["float", "uint8", "image"])
def test_whatever_is_done_to_a_tensor_is_done_to_its_pixels(kind: str, action: str) -> None:
    assert same(_plain(_outcome(action, pending(kind=kind))), _plain(_outcome(action, plain(kind=kind))))


def _outcome(action: str, tensor: Any) -> Any:
    try:
        return MADE[action](tensor)
    except (TypeError, RuntimeError, ValueError, IndexError) as error:
        return type(error), str(error)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return made(value) if isinstance(value, torch.Tensor) else value


def test_a_tensor_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = Recording._write
    monkeypatch.setattr(Recording, "_write", lambda *given: (calls.append(1), original(*given))[1])  # type: ignore[func-returns-value]
    tensor = pending()
    assert (tensor + 1).sum() + tensor[0, 0, 0] == (plain() + 1).sum() + plain()[0, 0, 0]
    assert len(calls) == 3  # two of them for the plain ones
    assert tensor.data_ptr() == tensor.data_ptr()


class Sample(NamedTuple):
    image: Any
    label: int


FORMS: dict[str, Callable[[int, Callable[..., Any]], Any]] = {
    "an image": lambda i, x: x(i),
    "a tuple": lambda i, x: (x(i), i),
    "a dict": lambda i, x: {"image": x(i), "path": str(i)},
    "a named tuple": lambda i, x: Sample(x(i), i),
    "a list of views": lambda i, x: [x(i), x(i)],
    "nested": lambda i, x: {"views": [x(i), (x(i), x(3 - i))], "target": {"of": x(i), "label": 1.5}},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["float", "uint8", "image"])
def test_default_collate_gives_the_batch_that_it_gives_for_ordinary_tensors(
    kind: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = default_collate([FORMS[form](i, lambda i: plain(i, kind=kind)) for i in range(4)])
    samples = [FORMS[form](i, lambda i: pending(i, kind=kind)) for i in range(4)]
    monkeypatch.setattr(Recording, "made", lambda _: pytest.fail("an image was made on its own"))
    assert same(default_collate(samples), wanted)


def test_stacking_takes_pending_and_ordinary_tensors_together() -> None:
    mixed = [pending(0), plain(1), pending(2)]
    made(mixed[2]).mul_(3)
    wanted = torch.stack([plain(0), plain(1), plain(2) * 3])
    assert same(torch.stack(mixed), wanted)
    assert same(torch.stack(tuple(mixed), dim=0), wanted)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["float", "uint8"])
def test_stacking_to_a_given_tensor_is_torchs(kind: str, dtype: torch.dtype) -> None:
    def stacked(tensors: list[Any]) -> Any:
        out = torch.zeros(2, 3, 7, 9, dtype=dtype)
        try:
            assert torch.stack(tensors, out=out) is out
        except (RuntimeError, TypeError) as error:
            return str(error)
        return out

    tensors, wanted = ([give(n, kind=kind) for n in range(2)] for give in (pending, plain))
    assert same(stacked(tensors), stacked(wanted))


def test_stacking_tensors_of_different_sizes_is_torchs_error() -> None:
    small = F.to_tensor(Image.open(io.BytesIO(FILES[0])).convert("RGB").resize((5, 5)))
    with pytest.raises(RuntimeError, match="equal size"):
        torch.stack([pending(0), small])
    out = torch.empty(2, 3, 7, 9, requires_grad=True)
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        torch.stack([pending(0), pending(1)], out=out)


def test_views_of_one_file_are_decoded_together_and_equal_to_those_decoded_alone() -> None:
    def views() -> list[Any]:
        image = Image.open(io.BytesIO(FILES[0])).convert("RGB")
        boxes = [(0, 0, 30, 25), (3, 2, 40, 30), (10, 5, 20, 9), (0, 0, 40, 30)]
        return [F.adjust_brightness(image.crop(box).resize((8, 8)), 1.5) for box in boxes]

    alone = [made(F.to_tensor(view)) for view in views()]
    together = [F.to_tensor(view) for view in views()]
    assert same(made(together[0]), alone[0])
    assert not any(isinstance(view.recording.source, Chain) for view in together[1:])
    assert all(map(is_pending, together[1:]))
    assert same(torch.stack(together[1:]), torch.stack(alone[1:]))


def test_a_tensor_of_another_class_shares_what_it_becomes() -> None:
    tensor = pending()
    named = tensor.as_subclass(tv_tensors.Image)
    assert is_pending(named)
    assert isinstance(named, tv_tensors.Image)
    tensor.add_(1)
    assert torch.equal(made(named), plain() + 1)
    assert type(made(named)) is tv_tensors.Image


def test_code_of_torch_that_knows_no_subclasses_gets_the_pixels() -> None:
    tensor = pending()
    assert torch.ops.aten.add.Tensor(tensor, 1).equal(plain() + 1)
    with torch._C.DisableTorchFunctionSubclass():
        assert torch.add(pending(), 1).equal(plain() + 1)


def test_the_files_bytes_are_given_back_once_the_tensor_is_made() -> None:
    tensor = pending()
    assert isinstance(tensor, PendingTensor)
    assert tensor.recording is not None
    file = tensor.recording.source.file  # type: ignore[union-attr]
    tensor.sum()
    assert not isinstance(tensor.recording.source, Chain)
    assert file is not None


def test_a_tensor_that_was_made_is_not_made_again_along_with_another_of_its_file() -> None:
    def crops() -> list[Any]:
        image = Image.open(io.BytesIO(FILES[0])).convert("RGB")
        return [F.to_tensor(image.crop((left, 0, left + 20, 20))) for left in range(3)]

    wanted = [made(crop) for crop in crops()]
    tensors = crops()
    tensors[0].mul_(0.5)
    tensors[1].add_(1)
    assert same(made(tensors[0]), wanted[0] * 0.5)
    assert same(made(tensors[1]), wanted[1] + 1)
    assert same(made(tensors[2]), wanted[2])


def test_a_tensor_and_a_copy_of_it_with_other_values_can_both_be_changed() -> None:
    tensor, plain_one = pending(), plain()
    both = [(x, F.normalize(x, [0.5] * 3, [0.2] * 3)) for x in (tensor, plain_one)]
    for _, normalized in both:
        normalized[:, :4] = 0
    assert same(*(made(normalized) for _, normalized in both))
    assert same(made(tensor), plain_one)


def test_threads_may_make_tensors_of_one_file_at_the_same_time() -> None:
    def crops() -> list[Any]:
        image = Image.open(io.BytesIO(FILES[0])).convert("RGB")
        return [F.to_tensor(image.crop((left, 0, left + 20, 20))) for left in range(16)]

    wanted = [made(crop) for crop in crops()]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            tensors = crops()
            assert all(map(same, threads.map(made, tensors * 2), wanted * 2))


UNUSUAL: dict[str, Callable[[Any], Any]] = {
    "size of a dimension by name": lambda x: (x.size(dim=1), x.stride(dim=1)),
    "numel by name": lambda x: torch.numel(input=x),  # type: ignore[call-arg]
    "is_floating_point by name": lambda x: torch.is_floating_point(input=x),
    "contiguous in another format": lambda x: x[None].is_contiguous(memory_format=torch.channels_last),
    "contiguous in a format for batches": lambda x: x.is_contiguous(memory_format=torch.channels_last),
    "stack along an axis": lambda x: torch.stack([x, x], axis=0),  # type: ignore[call-arg]
    "stack by name": lambda x: torch.stack(tensors=[x, x], dim=0),
    "stack along no dimension": lambda x: torch.stack([x, x], dim="0"),  # type: ignore[arg-type]
    "stack to nothing": lambda x: torch.stack([x, x], out=None),
    "clone by name": lambda x: torch.clone(input=x),
    "clone in a format": lambda x: x.clone(memory_format=torch.contiguous_format).stride(),
    "clone by nonsense": lambda x: x.clone(nonsense=1),
    "clone by torch": torch.clone,
    "requires_grad by name": lambda x: x.requires_grad_(requires_grad=False),
    "a size that is no number": lambda x: x.size("one"),
}


@pytest.mark.parametrize("action", UNUSUAL)
@pytest.mark.parametrize("kind", ["float", "uint8", "image"])
def test_any_spelling_of_a_call_gives_what_torch_gives(kind: str, action: str) -> None:
    def outcome(tensor: Any) -> Any:
        try:
            return _plain(UNUSUAL[action](tensor))
        except (TypeError, RuntimeError, ValueError) as error:
            return type(error)

    assert same(outcome(pending(kind=kind)), outcome(plain(kind=kind)))


def test_inference_mode_counts_where_a_tensor_comes_from_and_not_where_it_is_looked_at() -> None:
    tensor = pending()
    with torch.inference_mode():
        mean = float(tensor.mean())
        of_inference = pending()
    assert same(made(tensor.sub_(mean)), plain() - mean)
    assert not tensor.is_inference()
    assert made(of_inference).is_inference()
    image = pending(kind="image")
    with torch.inference_mode():
        image.sum()
    assert not image.add_(1).is_inference()


def test_a_tensor_that_is_kept_is_decoded_for_two_batches_and_never_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []
    monkeypatch.setattr(pending_module, "render", lambda *given: (calls.append(1), render(*given))[1])  # type: ignore[func-returns-value]
    tensors = [pending(n) for n in range(2)]
    batches = [torch.stack(tensors) for _ in range(4)]
    assert len(calls) == 4
    assert all(same(batch, torch.stack([plain(0), plain(1)])) for batch in batches)


def test_code_that_asks_for_memory_behind_torchs_back_gets_an_error() -> None:
    with pytest.raises(RuntimeError, match="data pointer"):
        to_dlpack(pending())
    assert same(torch.from_dlpack(pending()), plain())


def test_only_collation_stacks_in_the_memory_that_batches_are_sent_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stacked(_: Any) -> torch.Tensor:
        image = Image.open(io.BytesIO(FILES[0])).convert("RGB").resize((100, 100))
        return torch.stack([F.to_tensor(image)] * 2)

    segments = []
    monkeypatch.setattr(transport, "_outbox", transport.Outbox("test"))
    monkeypatch.setattr(transport, "allocate", lambda *given: (segments.append(1), allocate(*given))[1])  # type: ignore[func-returns-value]
    monkeypatch.setattr(pending_module, "_memory", transport.batch_memory)

    class Stacking(Dataset[Any]):
        def __getitem__(self, index: int) -> torch.Tensor:
            return stacked(index)

    def collate(samples: list[Any]) -> Any:
        means = [stacked(sample).mean() for sample in samples]  # memory that is not sent
        return means, stacked(samples)

    wanted = stacked(None)
    with ThreadPoolExecutor(1) as other:
        guarded = ErrorPolicyDataset(
            Stacking(), lambda samples: (collate(samples), other.submit(stacked, 0).result()), "raise"
        )
        samples = [guarded.sample(index, None) for index in range(20)]
        assert not segments
        (means, batch), of_another_thread = guarded.collated(samples, None, batched=True)
    assert len(segments) == 1
    assert same(batch, wanted)
    assert same(of_another_thread, wanted)
    assert means == [wanted.mean()] * 20
    kept = guarded.collated(samples, None, batched=True, collate=lambda _: [stacked(0) for _ in range(210)])
    assert len(segments) <= transport.MAX_SEGMENTS
    assert all(same(each, wanted) for each in kept)
