"""Other libraries' training loops run on Headrace's batches, and keep its place in their checkpoints."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.jpegs import image_folder

EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"
# Library, whether its worker shares the images with another.
NEEDED = {
    "accelerate_loop": ("accelerate", 1),
    "hugging_face_trainer": ("transformers", 1),
    "lightning_fit": ("lightning", 1),
    "ray_train": ("ray", 2),
    "timm_loop": ("timm", 1),
}


def test_every_example_is_tested() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(NEEDED)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)  # Ray starts six processes, each of which imports torch
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(NEEDED[name][0])) for name in sorted(NEEDED)]
)
def test_the_example_trains_on_headraces_batches(name: str, tmp_path: Path) -> None:
    """Two epochs of 24 images in batches of 8."""
    library, ranks = NEEDED[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    pictures, home = tmp_path / "pictures", tmp_path / "home"
    home.mkdir()
    image_folder(pictures, 24, side=64)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HOME": str(home),  # Ray keeps its results there
        "RAY_TRAIN_V2_ENABLED": "1",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "100000000",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), str(pictures)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    said = re.search(r"(\d+) samples by Headrace.*?, (\d+) steps", done.stdout)
    assert said, done.stdout
    samples, steps = int(said[1]), int(said[2])
    # With two ranks each has 12 of the 24: a batch of 8 and one of 4.
    assert (samples, steps) == ((48, 6) if ranks == 1 else (24, 4))


# Each prints the batches' sums of the whole run, and of one that resumes after batch CUT of it.
COMMON = """
import json, sys
import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder
import headrace

FOLDER, STATE, CUT = sys.argv[1], sys.argv[2], int(sys.argv[3])

def make_loader():
    crop = [transforms.RandomResizedCrop(64), transforms.ToTensor()]
    dataset = ImageFolder(FOLDER, transforms.Compose(crop))
    return headrace.DataLoader(dataset, batch_size=8, shuffle=True, seed=0, rank="auto")
"""
LIGHTNING = """
import lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(3, 2), []
    def training_step(self, batch, _):
        self.seen.append(batch[0].double().sum().item())
        return self.layer(batch[0].mean((2, 3))).square().mean()
    def on_train_batch_end(self, *_):
        if self.trainer.global_step == CUT:
            self.trainer.save_checkpoint(STATE)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

def run(checkpoint=None):
    model = Model()
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", use_distributed_sampler=False, **quiet)
    trainer.fit(model, make_loader(), ckpt_path=checkpoint)
    return model.seen

print(json.dumps([run(), run(STATE)]))
"""
ACCELERATE = """
from accelerate import Accelerator

def run(resume):
    accelerator, loader, seen = Accelerator(cpu=True), make_loader(), []
    accelerator.register_for_checkpointing(loader)
    if resume:
        accelerator.load_state(STATE)
    while len(seen) < (6 - CUT if resume else 6):
        for images, _ in loader:
            seen.append(images.double().sum().item())
            if not resume and len(seen) == CUT:
                accelerator.save_state(STATE)
    return seen

print(json.dumps([run(False), run(True)]))
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("cut", [1, 5])
@pytest.mark.parametrize(("library", "code"), [("lightning", LIGHTNING), ("accelerate", ACCELERATE)])
def test_a_run_goes_on_in_the_middle_of_an_epoch(library: str, code: str, cut: int, tmp_path: Path) -> None:
    """Two epochs of three batches."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    folder = image_folder(tmp_path / "pictures", 24, side=64)
    done = subprocess.run(
        [sys.executable, "-c", COMMON + code, str(folder), str(tmp_path / "state"), str(cut)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    whole, resumed = json.loads(done.stdout.splitlines()[-1])
    assert len(set(whole)) == 6
    assert resumed == whole[cut:]
