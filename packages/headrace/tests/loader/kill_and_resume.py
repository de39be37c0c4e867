"""Runs that are killed at random points and resumed on other numbers of ranks and workers: 2, then 1, then 3.

python kill_and_resume.py FOLDER_OF_PICTURES FOLDER_FOR_FILES KILLS

Prints nothing and exits with 0 if every run gave, position by position, the bytes that one uninterrupted
process gives.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from support.noisy_dataset import Noisy

EPOCHS = 2
GLOBAL_BATCH = 12
WORLDS = (2, 1, 3)


def pictures(folder: str) -> ImageFolder:
    steps = [transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return ImageFolder(folder, transforms.Compose(steps))


def rank_main(
    rank: int, world: int, dataset: Any, out: Path, stage: int, kill_after: int, workers: int
) -> None:
    """One rank of one stage: what it gets goes to files; after every batch of all ranks, the state too.

    Args:
        kill_after: batches after which rank 0 kills itself; 0: none.
    """
    if world > 1:
        address = f"file://{out}/store-{stage}"
        torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    loader = headrace.DataLoader(
        dataset, GLOBAL_BATCH // world, shuffle=True, seed=5, rank="auto", num_workers=workers
    )
    state = out / "state"
    if state.exists():
        loader.load_state_dict(pickle.loads(state.read_bytes()))
    done = 0
    while (saved := loader.state_dict())["epoch"] < EPOCHS:
        position = saved["position"]
        for batch in loader:
            rows = list(zip(*(list(part) for part in batch), strict=True))
            samples = {position + rank + world * j: as_bytes(row) for j, row in enumerate(rows)}
            name = f"{stage}-{saved['epoch']}-{position}-{rank}"
            write(out / f"batch-{name}", pickle.dumps((saved["epoch"], samples)))
            if world > 1:
                torch.distributed.barrier()
            if rank == 0:
                write(state, pickle.dumps(loader.state_dict()))
            done += 1
            if rank == 0 and done == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            position += GLOBAL_BATCH
    write(out / f"end-{stage}-{rank}", b"")


def as_bytes(row: tuple[torch.Tensor, ...]) -> bytes:
    return b"".join(f"{part.dtype}{list(part.shape)}".encode() + part.numpy().tobytes() for part in row)


def write(path: Path, data: bytes) -> None:
    path.with_suffix(f".{os.getpid()}").write_bytes(data)
    path.with_suffix(f".{os.getpid()}").rename(path)


def fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return pid


def run_stage(world: int, dataset: Any, out: Path, stage: int, kill_after: int, workers: int) -> None:
    """All ranks of a stage, until they end or rank 0 is killed."""
    pids = [
        fork(lambda r=rank: rank_main(r, world, dataset, out, stage, kill_after, workers))  # type: ignore[misc]
        for rank in range(world)
    ]
    _, status = os.waitpid(pids[0], 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.WEXITSTATUS(status) == 0, "rank 0 failed"
    for pid in pids[1:]:
        if killed:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert killed or os.waitstatus_to_exitcode(status) == 0, "a rank failed"


def collected(out: Path, dataset: Any) -> dict[tuple[int, int], bytes]:
    """Bytes by (epoch, position): where stages overlap, all must have given the same."""
    found: dict[tuple[int, int], bytes] = {}
    for path in sorted(out.glob("batch-*")):
        epoch, samples = pickle.loads(path.read_bytes())
        for position, sample in samples.items():
            if position < len(dataset):  # the rest is padding
                assert found.setdefault((epoch, position), sample) == sample, path
    return found


def main(folder: str, files: str, kills: int) -> None:
    # Forked children must find no threads of torch's: nothing is computed before the last fork.
    torch.set_num_threads(1)
    # The children are many, the cores few; and Python 3.12 warns of forks.
    warnings.simplefilter("ignore")
    chance = random.Random(time.time_ns() if "SEED" not in os.environ else int(os.environ["SEED"]))
    datasets = [pictures(folder), Noisy(41)]
    expected = []
    for number, dataset in enumerate(datasets):
        out = Path(files) / f"whole-{number}"
        out.mkdir()
        run_stage(1, dataset, out, 0, 0, 0)
        expected.append(collected(out, dataset))
        assert len(expected[-1]) == EPOCHS * len(dataset)
    for run in range(-(-kills // 2)):
        number = run % 2
        out = Path(files) / f"run-{run}"
        out.mkdir()
        for stage, world in enumerate(WORLDS):
            last = stage == len(WORLDS) - 1
            # An epoch has 3 or 4 batches.
            kill_after = 0 if last else chance.randint(1, 3)
            workers = chance.choice([0, 1, 2, 7] if number == 0 else [0, 1, 2])
            run_stage(world, datasets[number], out, stage, kill_after, workers)
        assert (out / "end-2-0").exists()
        assert collected(out, datasets[number]) == expected[number], f"run {run} differs"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
