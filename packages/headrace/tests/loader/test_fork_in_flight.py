"""A fork while batches are being made."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from support.jpegs import image_folder


def test_a_forked_child_gets_the_batches_that_were_in_flight(tmp_path: Path) -> None:
    """The fork comes right after the start, when the first batch is far from complete."""
    steps = [transforms.RandomResizedCrop(200, scale=(0.9, 1.0)), transforms.ToTensor()]
    dataset = ImageFolder(str(image_folder(tmp_path, 32, side=800)), transforms.Compose(steps))
    expected = list(headrace.DataLoader(dataset, batch_size=32, seed=2))
    batches = iter(headrace.DataLoader(dataset, batch_size=32, seed=2))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if torch.equal(next(batches)[0], expected[0][0]) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(next(batches)[0], expected[0][0])
