"""Loaders of the same batches with other settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import headrace
from headrace_doctor.measure.subject import (
    arguments_of,
    batch_samples,
    clone,
    most_bytes,
    nbytes,
    with_settings,
)


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)), index


@pytest.mark.parametrize(
    ("batch", "part"),
    [
        ([torch.zeros(4, 3, 9, 9), torch.zeros(4)], "batch[0]"),
        ((torch.zeros(2, 9), [{"box": [1, 2], "outlines": [[0.5] * 900]}] * 2), "batch[1][…]['outlines'][…]"),
        ({"image": torch.zeros(2, 99), "text": ["a" * 999, "b" * 999]}, "batch['text'][…]"),
        ([torch.zeros(9), torch.zeros(9)], ""),
        ([], "batch"),
    ],
)
def test_the_part_of_a_batch_with_most_bytes_is_named(batch: Any, part: str) -> None:
    assert most_bytes(batch) == part


@pytest.mark.parametrize("settings", [{}, {"loader": {"num_workers": 1}}, {"headrace": True}])
@pytest.mark.parametrize("batch_size", [4, None])
def test_another_loader_gives_the_same_batches(settings: dict[str, Any], batch_size: int | None) -> None:
    loader = DataLoader(Rows(), batch_size=batch_size)
    other = with_settings(loader, settings)
    assert isinstance(other, headrace.DataLoader) == bool(settings.get("headrace"))
    for one, same in zip(loader, other, strict=True):
        assert torch.equal(one[0], same[0])


def test_what_is_not_changed_is_kept() -> None:
    loader = DataLoader(Rows(), 2, num_workers=1, prefetch_factor=3, persistent_workers=True, drop_last=True)
    other = with_settings(loader, {"loader": {"num_workers": 2}})
    assert (other.num_workers, other.prefetch_factor, other.persistent_workers) == (2, 3, True)
    assert other.drop_last
    assert "prefetch_factor" not in arguments_of(with_settings(loader, {"loader": {"num_workers": 0}}))


def test_a_clone_shares_nothing() -> None:
    batch = {"x": torch.ones(2, 3), "rest": [torch.zeros(2), ("a", [1])]}
    twin = clone(batch)
    twin["x"].add_(1)
    twin["rest"][1][1].append(2)
    assert torch.equal(batch["x"], torch.ones(2, 3))  # type: ignore[arg-type]
    assert batch["rest"][1] == ("a", [1])  # type: ignore[index]
    assert nbytes(batch) == 4 * (6 + 2)
    assert batch_samples(batch, None) == 2
    assert batch_samples(["text"], 7) == 7


def test_a_tensor_without_rows_does_not_tell_how_many_samples_a_batch_has() -> None:
    """As of the boxes of images that show nothing, put together: rates and errors are by samples."""
    nothing = torch.zeros(0, 4)
    assert batch_samples({"boxes": nothing, "images": torch.zeros(8, 3, 2, 2)}, 8) == 8
    assert batch_samples({"boxes": nothing}, 8) == 8
    assert batch_samples(nothing, None) == 1
    assert batch_samples([[], ["text"]], 4) == 4
