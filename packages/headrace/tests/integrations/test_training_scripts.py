"""Scripts of other projects, unchanged, train with `headrace.DataLoader` as with torch's.

torchvision's are in its sources, as Debian keeps them (13 MB); they are fetched once into data/.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from support.jpegs import image_folder
from support.training_scripts import SECONDS, fetched, run, starting_with, steady

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(3 * SECONDS)]

VISION = "http://deb.debian.org/debian/pool/main/p/pytorch-vision/pytorch-vision_0.21.0.orig.tar.gz"
VISION_SHA256 = "0a4a967bbb7f9810f792cd0289a07fb98c8fb5d1303fae8b63e3a6b05d720058"
CLASSES = 24
SIZES = "--val-resize-size 40 --val-crop-size 32 --train-crop-size 32"
BASE = f"--model mobilenet_v3_small --device cpu -b 5 --epochs 2 -j 2 {SIZES} --print-freq 1 --output-dir out"
# Where an image has one color, crops and flips change no pixel, so that losses are equal to the last digit.
PLAIN = {
    "PIL images": "--model-ema --model-ema-steps 1",
    "tensors": "--use-v2 --backend tensor --cache-dataset",
}
RANDOM = {
    "RandAugment": "--auto-augment ra --random-erase 0.5",
    "TrivialAugment": "--auto-augment ta_wide --use-v2",
    "AugMix": "--auto-augment augmix --use-v2",
    "AutoAugment": "--auto-augment imagenet",
    "mixup and cutmix": "--mixup-alpha 0.2 --cutmix-alpha 1 --label-smoothing 0.1",
}
TIMES = re.compile(r"(Took |eta: |img/s: |[Tt]ime:? |data: )[-\d.:e]+")
DECIMALS = re.compile(r"\d+\.\d+(e-\d+)?")
WATCH = "import support.training_watch\n"


@pytest.fixture(scope="session")
def vision() -> Path:
    """torchvision's reference scripts for classification."""
    return fetched(VISION, VISION_SHA256, "*/references/classification/*.py")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders "plain" and "noise", for training and evaluation; a label says which image it is."""
    root = tmp_path_factory.mktemp("images")
    for kind in ("plain", "noise"):
        for part in ("train", "val"):
            image_folder(root / kind / part, CLASSES, classes=CLASSES, side=48)
    for number, path in enumerate(sorted((root / "plain" / "train").rglob("*.jpg"))):
        color = np.random.default_rng(number).integers(0, 256, 3)
        Image.new("RGB", (48 + number, 60 - number), tuple(int(each) for each in color)).save(path)
    return root


class Run:
    """What a script printed, and what its losses were given."""

    def __init__(self, script: Path, arguments: str, place: Path, ranks: int = 1) -> None:
        place.mkdir()
        loader, _, hooks = place.name.partition(" ")
        start = ("import headrace; headrace.install()\n" if loader == "headrace" else "") + WATCH
        environment = {"PYTHONPATH": starting_with(start, place / "start"), "HOME": str(place)}
        environment["HEADRACE_TEST_RECORD"] = str(place / "record")
        environment["HEADRACE_TEST_HOOKS"] = hooks
        out, errors = run(
            [str(script), *arguments.replace("PLACE", str(place)).split()], place, environment, ranks
        )
        self.out = [[TIMES.sub(r"\1…", line) for line in steady(lines, place)] for lines in out]
        self.errors = steady(errors, place)
        records = [
            json.loads(line)
            for n in range(ranks)
            for line in (place / f"record-{n}").read_text().splitlines()
        ]
        self.samples = [record["samples"] for record in records]
        self.numbers = [record["numbers"] for record in records]

    def check(self, other: Run, *, exact: bool) -> None:
        """The same samples, nothing more on standard error, and the same output; its decimals if `exact`."""
        assert self.samples == other.samples
        assert [line for line in self.errors if line not in other.errors] == []
        if exact:
            assert self.numbers == other.numbers
            assert self.out == other.out
        else:
            assert without_decimals(self.out) == without_decimals(other.out)


def without_decimals(out: list[list[str]]) -> list[list[str]]:
    return [[DECIMALS.sub("…", line) for line in lines] for lines in out]


def runs(names: list[str], script: Path, arguments: str, place: Path, ranks: int = 1) -> list[Any]:
    """Runs side by side."""
    with ThreadPoolExecutor() as threads:
        return list(threads.map(lambda name: Run(script, arguments, place / name, ranks), names))


@pytest.mark.parametrize("name", PLAIN)
def test_torchvisions_reference_trains_as_with_torchs_loader(
    name: str, vision: Path, folders: Path, tmp_path: Path
) -> None:
    arguments = f"{BASE} {PLAIN[name]} --data-path {folders / 'plain'}"
    theirs, ours = runs(["torch", "headrace"], vision / "train.py", arguments, tmp_path)
    ours.check(theirs, exact=True)


@pytest.mark.parametrize("name", RANDOM)
def test_torchvisions_reference_draws_as_torch_where_python_draws(
    name: str, vision: Path, folders: Path, tmp_path: Path
) -> None:
    """With hooks for all modules transforms run as written; native ones draw numbers of their own."""
    arguments = f"{BASE} {RANDOM[name]} --data-path {folders / 'noise'}"
    names = ["torch", "headrace hooks", "headrace"]
    theirs, python, native = runs(names, vision / "train.py", arguments, tmp_path)
    python.check(theirs, exact=True)
    native.check(theirs, exact=False)
    assert native.numbers != theirs.numbers, "nothing ran natively"


def test_torchvisions_reference_shares_repeated_augmentation_among_ranks_as_with_torchs_loader(
    vision: Path, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TEST_RANKS_ON_CPU", "1")
    arguments = f"{BASE} --ra-sampler --dist-url file://PLACE/meeting --data-path {folders / 'plain'}"
    theirs, ours = runs(["torch", "headrace"], vision / "train.py", arguments, tmp_path, ranks=2)
    ours.check(theirs, exact=True)
