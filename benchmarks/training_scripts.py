"""Public training scripts and trainers, re-created with their own loaders and options, under `headrace run`.

Prints a table: for each loader of each script how it was planned, and how many times as fast as torch's it
is, from `headrace explain` and `headrace run --compare`. The scripts contain nothing of Headrace; each is a
file as its authors would have written it, on little models and images, so that it runs on a CPU.

    python benchmarks/training_scripts.py data/pictures-2000
    python benchmarks/training_scripts.py data/pictures-2000 --scripts dino timm_train --seconds 20
    python benchmarks/training_scripts.py data/pictures-2000 --check   the same output as with torch's loader?
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

import machine

FOLDER = Path(__file__).with_name("scripts")
COUNT = 320  # images for training; a quarter as many for validation
SECONDS = 400  # of one run
HOOKS = "import torch\ntorch.nn.modules.module.register_module_forward_pre_hook(lambda *_: None)\n"
# What differs from run to run: runtimes and rates.
VARYING = re.compile(
    r"'\w*(runtime|per_second)': '?[\d.]+'?|\d[\d.]*(±[\d.]+)? ?[KMG]?(s/it|it/s|B/s|ms|hours|s\b)"
)
DECIMALS = re.compile(r"-?\d+\.\d+(e[-+]\d+)?")


@dataclass(frozen=True)
class Script:
    """A script of `scripts`.

    Attributes:
        name: of its file.
        arguments: after the folder of images.
        needs: packages that it imports besides torchvision.
        native: whether native code draws the random numbers of its training, so that its losses are others
            than with torch's loader. With hooks for all modules transforms run as written.
        timm: whether transforms are no modules, so that hooks don't matter.
        ranks: how it is started for two ranks: by "torchrun" or by arguments, or None if it has no ranks.
    """

    name: str
    arguments: str = "--seed 0"
    needs: tuple[str, ...] = ()
    native: bool = False
    timm: bool = False
    ranks: str | None = None

    @property
    def missing(self) -> list[str]:
        """The packages that aren't installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def command(self, data: Path, ranks: int = 1, *verb: str) -> list[str]:
        """The command that runs it, by a verb of Headrace's if one is given."""
        start, end = [sys.executable, *(["-m", "headrace", *verb] if verb else [])], []
        if ranks > 1 and self.ranks == "torchrun":
            start += ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        elif ranks > 1:
            assert self.ranks is not None
            end = self.ranks.split()
        launcher = ["--launcher", "pytorch"] if ranks > 1 and self.name.startswith("mmengine") else []
        return [*start, str(FOLDER / f"{self.name}.py"), str(data), *self.arguments.split(), *end, *launcher]


SCRIPTS = (
    Script("imagenet_main", native=True),
    Script("torchvision_classification", native=True),
    Script("torchvision_segmentation"),
    Script("timm_train", needs=("timm",), native=True, timm=True),
    Script("dino", native=True),
    Script("simclr", native=True),
    Script("mae_pretrain", native=True),
    Script("clip_csv"),
    Script("unet"),
    Script("run_image_classification", needs=("transformers", "datasets")),
    Script("kaggle_albumentations", needs=("albumentations", "cv2")),
    Script("lightning_fit", "", needs=("lightning",), ranks="--ranks 2"),
    Script("hugging_face_trainer", "", needs=("transformers",), ranks="torchrun"),
    Script("mmengine_runner", "", needs=("mmengine",), ranks="torchrun"),
    Script("fastai_learner", "--torch", needs=("fastai",)),
    Script("fastai_learner", "", needs=("fastai",)),
    Script("ultralytics_classify", "", needs=("ultralytics",)),
    Script("ray_train", "", needs=("ray",), ranks="--ranks 2"),
)


def prepare(folder: Path, images: Path, count: int = COUNT) -> None:
    """Makes what the scripts read of class folders of JPEGs: train, val, masks, captions.csv, train.csv."""
    classes = sorted(path for path in images.iterdir() if path.is_dir())
    kinds = [sorted(path.glob("*.jpg")) for path in classes]
    chosen = [path for row in itertools.zip_longest(*kinds) for path in row if path is not None]
    rows = []
    for number, path in enumerate(chosen[: count + count // 4]):
        part = folder / ("train" if number < count else "val")
        copy = part / path.parent.name / f"{number:05}.jpg"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
        if part.name == "train":
            mask = folder / "masks" / f"{copy.stem}.png"
            mask.parent.mkdir(exist_ok=True)
            with Image.open(path) as image:
                image.convert("L").point([level // 64 for level in range(256)]).save(mask)
            rows.append(f"{copy},an image of {path.parent.name},{classes.index(path.parent)}")
    for name, header in (("captions.csv", "filepath,title,label"), ("train.csv", "file_name,title,label")):
        (folder / name).write_text("\n".join([header, *rows]) + "\n")


def run(command: list[str], place: Path, *, hooks: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder of its own; with `hooks`, torch's modules have some in all its processes."""
    place.mkdir(parents=True)
    path = [entry for entry in sys.path if entry]
    if hooks:
        (place / "start").mkdir()
        (place / "start" / "sitecustomize.py").write_text(HOOKS)
        path = [str(place / "start"), *path]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "HOME": str(place),
        "YOLO_CONFIG_DIR": str(place),
        "YOLO_OFFLINE": "true",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    }
    return subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def printed(done: subprocess.CompletedProcess[str], *, exact: bool) -> list[str]:
    """The lines that a script printed, without what differs between runs; decimals only if `exact`."""
    lines = [VARYING.sub("…", line.rpartition("\r")[2]) for line in done.stdout.splitlines()]
    # Without progress bars, and the folders that Ultralytics names.
    lines = [line for line in lines if tempfile.gettempdir() not in line and "━" not in line]
    return lines if exact else [DECIMALS.sub("…", line) for line in lines]


def differences(script: Script, data: Path, place: Path, ranks: int = 1) -> list[str]:
    """The differences between the script's runs with torch's loader and under `headrace run`, in words; [] if
    nothing does."""
    theirs = run(script.command(data, ranks), place / "torch")
    found = [] if theirs.returncode == 0 else [f"fails with torch's loader: {theirs.stderr[-2000:]}"]
    for hooks in (False, True) if script.native and not script.timm else (False,):
        ours = run(script.command(data, ranks, "run"), place / f"headrace-{hooks}", hooks=hooks)
        exact = hooks or not script.native
        expected, lines = printed(theirs, exact=exact), printed(ours, exact=exact)
        if ours.returncode != theirs.returncode:
            found.append(f"ends with {ours.returncode} instead of {theirs.returncode}: {ours.stderr[-2000:]}")
        if not any(re.search(r"\d", line) for line in expected):
            found.append("prints no number")
        if lines != expected:
            pairs = itertools.zip_longest(expected, lines)
            found += [f"{one!r} became {other!r}" for one, other in pairs if one != other][:4]
        if script.timm and ours.stdout.splitlines()[:1] != theirs.stdout.splitlines()[:1]:
            found.append("another result of validation before training")
    return found


def table_rows(script: Script, data: Path, place: Path, seconds: float) -> list[list[str]]:
    """A row for each loader: the script, its line, its plan, what becomes of images, and the ratio."""
    explained = run(script.command(data, 1, "explain"), place / "explain").stdout
    compared = run(script.command(data, 1, "run", "--compare", str(seconds)), place / "compare").stdout
    blocks = re.split(r"^(?=\S+:\d+$)", explained, flags=re.MULTILINE)
    ratios: dict[str, list[str]] = {}  # by line, which may create several loaders
    for line, ratio in re.findall(r"^(\S+:\d+)\n.*: (\S+) times as fast", compared, re.MULTILINE):
        ratios.setdefault(line, []).append(ratio)
    rows = []
    for block in blocks:
        plan = re.search(r"^(\S+:\d+)\nplan: (\w+)", block)
        if plan is None:
            continue
        images = re.search(r"^images: (.*)", block, re.MULTILINE)
        text, ratio = images[1] if images else "", ratios.get(plan[1])
        times = ratio.pop(0) if ratio else ""
        rows.append([script.name, Path(plan[1]).name, plan[2], text, times])
    return rows or [[script.name, "no loader of torch's class", "", "", ""]]


def main() -> None:
    """Prints the table, or with --check what differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", type=Path, help="class folders of JPEGs")
    parser.add_argument("--scripts", nargs="+", default=[script.name for script in SCRIPTS])
    parser.add_argument("--seconds", type=float, default=10, help="of each comparison")
    parser.add_argument("--json", type=Path, help="keep the rows here; scripts in it are not run again")
    parser.add_argument("--check", action="store_true", help="compare what they print")
    arguments = parser.parse_args()
    about = {"machine": machine.describe(), "foreign_cores_before": round(machine.foreign_load(), 2)}
    kept: list[list[str]] = machine.continued(arguments.json).get("rows", []) if arguments.json else []
    done = {row[0] for row in kept}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data")
        prepare(data, arguments.images)
        if not arguments.check:
            print("| script | loader | plan | images | times torch |\n|---|---|---|---|---|")
        for number, script in enumerate(SCRIPTS):
            if script.name not in arguments.scripts or script.name in done:
                continue
            if script.missing:
                print(f"{script.name}: not run without {', '.join(script.missing)}", file=sys.stderr)
                continue
            place = Path(folder, str(number))
            for ranks in (1, 2) if arguments.check and script.ranks else (1,):
                if arguments.check:
                    found = differences(script, data, place / str(ranks), ranks)
                    name = f"{script.name} {script.arguments}, {ranks} rank{'s' * (ranks - 1)}"
                    print(f"{name}: {'; '.join(found) or 'the same'}", flush=True)
                else:
                    rows = table_rows(script, data, place, arguments.seconds)
                    print(*(f"| {' | '.join(row)} |" for row in rows), sep="\n", flush=True)
                    kept += rows
                    if arguments.json:
                        machine.keep({**about, "rows": kept}, arguments.json)


if __name__ == "__main__":
    main()
