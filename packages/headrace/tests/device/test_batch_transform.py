"""batch_transform: called as documented, randomness of its first sample, generators left untouched."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from headrace.device.prefetcher import DevicePrefetcher
from headrace.engine.finish import BatchTransform
from headrace.records import BatchKeys

CPU = torch.device("cpu")
IMAGES, LABELS = torch.arange(4 * 3 * 8 * 8).reshape(4, 3, 8, 8).float(), torch.tensor([0, 1, 2, 1])


def keys_of(first: int, seed: int = 1, epoch: int = 0, occurrence: int = 0) -> BatchKeys:
    return BatchKeys(seed, epoch, np.arange(first, first + 4), np.full(4, occurrence))


def states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index, union-attr]


def draw(*batch: Any) -> list[float]:
    return [torch.rand(1).item(), float(np.random.rand()), random.random()]


def test_pairs_are_two_arguments_and_the_rest_is_one() -> None:
    def given(*arguments: Any) -> tuple[Any, ...]:
        return arguments

    called = BatchTransform(given, CPU)
    assert called([1, 2], None) == (1, 2)
    assert called((1, 2), None) == (1, 2)
    assert called([1, 2, 3], None) == ([1, 2, 3],)
    assert called({"a": 1, "b": 2}, None) == ({"a": 1, "b": 2},)
    assert called(IMAGES, None)[0] is IMAGES


@pytest.mark.parametrize("mix", [v2.MixUp, v2.CutMix])
def test_mixup_and_cutmix_repeat_for_the_same_keys(mix: Any) -> None:
    transform = BatchTransform(v2.RandomChoice([mix(num_classes=3)]), CPU)
    images, labels = transform([IMAGES, LABELS], keys_of(0))
    assert labels.shape == (4, 3)
    assert torch.allclose(labels.sum(1), torch.ones(4))
    assert not torch.equal(images, IMAGES)
    again, _ = transform([IMAGES, LABELS], keys_of(0))
    assert torch.equal(again, images)


def test_draws_follow_the_key_alone() -> None:
    transform = BatchTransform(draw, CPU)
    others = (keys_of(0, seed=2), keys_of(0, epoch=1), keys_of(0, occurrence=1))
    drawn = [transform(IMAGES, keys) for keys in (keys_of(0), keys_of(4), *others)]
    assert len({value for row in drawn for value in row}) == 15
    torch.manual_seed(99)
    assert transform([IMAGES], keys_of(4)) == drawn[1]


def test_the_generators_are_as_before() -> None:
    before = states()
    BatchTransform(draw, CPU)(IMAGES, keys_of(0))
    assert states() == before

    def fails(batch: Any) -> Any:
        raise KeyError(draw(batch)[0])

    with pytest.raises(KeyError):
        BatchTransform(fails, CPU)(IMAGES, keys_of(0))
    assert states() == before


def test_without_keys_it_draws_from_the_generators_as_they_are() -> None:
    for keys in (None, BatchKeys(0, 0, np.zeros(0, np.int64), np.zeros(0, np.int64))):
        torch.manual_seed(3)
        expected = torch.rand(1).item()
        torch.manual_seed(3)
        assert BatchTransform(draw, CPU)(IMAGES, keys)[0] == expected


def takes_a_sample(image: torch.Tensor) -> torch.Tensor:
    return image * 2


def adds_a_word(images: torch.Tensor, labels: torch.Tensor) -> Any:
    return images + "noise", labels  # type: ignore[operator]


class StrangeError(TypeError):
    pass


@pytest.mark.parametrize(
    ("transform", "batch", "said"),
    [
        (
            takes_a_sample,
            [IMAGES, LABELS],
            r"batch_transform \(takes_a_sample \(\S+test_batch_transform.py:\d+\)\) failed: .*takes 1"
            r" positional argument but 2 were given. It is called with the finished batch, not with"
            r" single samples: batch_transform\(images, labels\), here with torch.float32 \[4, 3, 8, 8\]"
            r" and torch.int64 \[4\]\. Let it take",
        ),
        (adds_a_word, (IMAGES, LABELS), r"adds_a_word .*unsupported.*batch_transform\(images, labels\)"),
        (adds_a_word, {"a": 1, "b": 2}, r"missing 1 .*'labels'. .*batch_transform\(batch\), .* dict of 2\."),
        (adds_a_word, 3, r"batch_transform\(batch\), here with int\. Let it take"),
    ],
)
def test_a_type_error_says_what_it_is_called_with(transform: Any, batch: Any, said: str) -> None:
    before = states()
    with pytest.raises(TypeError, match=said) as caught:
        BatchTransform(transform, CPU)(batch, keys_of(0))
    assert type(caught.value.__cause__) is TypeError
    assert str(caught.value.__cause__) in str(caught.value)
    assert states() == before


def test_other_errors_are_raised_as_they_are() -> None:
    for error in (StrangeError("mine"), ValueError("no")):

        def fails(*_: Any, error: Exception = error) -> Any:
            raise error

        with pytest.raises(type(error)) as caught:
            BatchTransform(fails, CPU)([IMAGES, LABELS], None)
        assert caught.value is error


def test_the_feed_calls_it_last() -> None:
    feed = DevicePrefetcher(None, finish=BatchTransform(v2.MixUp(num_classes=3), CPU))
    images, labels = feed.receive(feed.send([IMAGES, LABELS], keys_of(0)))
    assert labels.shape == (4, 3)
    assert images.shape == IMAGES.shape


@pytest.mark.gpu
def test_a_devices_generator_is_seeded_and_put_back(gpu: torch.device) -> None:
    transform = BatchTransform(lambda batch: torch.rand(3, device=batch.device).tolist(), gpu)
    module = torch.get_device_module(gpu)
    batch = torch.zeros(1, device=gpu)
    before = module.get_rng_state(gpu)
    drawn = transform(batch, keys_of(0))
    assert torch.equal(module.get_rng_state(gpu), before)
    torch.rand(5, device=gpu)
    assert transform(batch, keys_of(0)) == drawn
    assert transform(batch, keys_of(4)) != drawn
