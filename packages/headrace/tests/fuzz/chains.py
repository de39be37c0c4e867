"""Random chains of ops on random images, by native code and by torchvision for the same draws.

    python tests/fuzz/chains.py --pairs 2000000

The examples of `OPS` in any order, one to five of them, on images of 1×1 to 64×64 pixels. Each pair of a
chain and an image depends on its number and the seed alone: `--first N --pairs 1` runs number N again. Ends
with the chain, and status 1, where a pixel differs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tests"))

from headrace.engine.lower import draws_of
from headrace.records import SampleKey
from headrace.transforms.op import ImageOp, replay
from support.op_cases import CASES, made, native, pipeline_of, read, same

MOST_EDGE, MOST_PIXELS = 64, 1 << 16
BLOCK = 500


def ops() -> dict[str, ImageOp]:
    """Each example, read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: read(made(case)) for name, case in CASES.items()}


def any_image(rng: np.random.Generator) -> Image.Image:
    """Noise; noise of few levels; smooth; or one colour."""
    height, width = (int(edge) for edge in rng.integers(1, MOST_EDGE + 1, 2))
    kind = rng.integers(4)
    if kind == 0:
        return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
    low = int(rng.integers(0, 250))
    if kind == 1:
        return Image.fromarray(rng.integers(low, low + 6, (height, width, 3), np.uint8))
    if kind == 2:
        return Image.fromarray(rng.integers(0, 256, (3, 3, 3), np.uint8)).resize((width, height))
    return Image.new("RGB", (width, height), tuple(rng.integers(0, 256, 3).tolist()))


def run(number: int, seed: int, known: dict[str, ImageOp]) -> str:
    """What became of one pair: "equal", or why it wasn't compared. Raises AssertionError where it differs."""
    choice = random.Random(f"{seed} {number}")
    rng = np.random.default_rng([seed, number])
    names = choice.choices(list(known), k=choice.choice([1, 1, 2, 3, 5]))
    image, key = any_image(rng), SampleKey(seed, 0, number)
    steps = [known[name] for name in names]
    drawn = draws_of(pipeline_of(steps), steps, key, image.width, image.height)
    if drawn is None:
        return "refused by torchvision"
    height, width = image.height, image.width
    size = pipeline_of(steps).draw(key, width, height)
    if size is None or size.width * size.height > MOST_PIXELS:
        return "too large"
    found = native(steps, image, key)
    if found is None:
        return "left to torchvision"
    expected = replay(image, steps, drawn)
    assert same(found, expected), f"pair {number} of seed {seed}: {names} on {image.size}, drawn {drawn}"
    return "equal"


def run_block(task: tuple[int, int, int, float]) -> Counter[str]:
    """Some pairs, one after another; none where it is too late for them."""
    first, count, seed, deadline = task
    if time.monotonic() > deadline:
        return Counter()
    torch.set_num_threads(1)
    known = _ops()
    return Counter(run(number, seed, known) for number in range(first, first + count))


_known: dict[str, ImageOp] = {}


def _ops() -> dict[str, ImageOp]:
    if not _known:
        _known.update(ops())
    return _known


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=2_000_000, help="how many pairs of a chain and an image")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--seconds", type=float, default=float("inf"), help="the most that it may take")
    given = parser.parse_args(arguments)
    end = given.first + given.pairs
    begin, seen = time.monotonic(), Counter[str]()
    deadline = begin + given.seconds
    tasks = [(at, min(BLOCK, end - at), given.seed, deadline) for at in range(given.first, end, BLOCK)]
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        for number, counts in enumerate(pool.imap_unordered(run_block, tasks)):
            seen += counts
            if number % 100 == 99:
                sys.stdout.write(f"{seen.total():,} pairs in {time.monotonic() - begin:.0f} s\n")
    sys.stdout.write(f"{seen.total():,} pairs of seed {given.seed}: {summary(seen)}; no difference\n")
    return 0


def summary(seen: Counter[str]) -> str:
    """Such as ``1,900,000 equal, 100,000 refused by torchvision``."""
    return ", ".join(f"{count:,} {what}" for what, count in seen.most_common())


if __name__ == "__main__":
    sys.exit(main())
