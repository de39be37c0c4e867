"""`headrace run` and `headrace explain` on training scripts, as a user types them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import replacement, run
from support.command import run_command
from support.images import image_folder, noise

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, RandomResizedCrop, ToTensor

class Rows(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return float(index)

class Derived(DataLoader):
    pass

def main(epochs, end):
    train = ImageFolder(sys.argv[1], Compose([RandomResizedCrop(16), ToTensor()]))
    loader = DataLoader(train, batch_size=4, shuffle=True, num_workers=2)
    for epoch in range(epochs):
        print("epoch", epoch, sum(len(images) for images, _ in loader), flush=True)
        print("validation", sum(len(rows) for rows in DataLoader(Rows(), batch_size=5)), flush=True)
    print("derived", sum(len(batch) for batch in Derived(Rows(), 5)), flush=True)
    sys.exit(int(end))

if __name__ == "__main__":
    main(int(sys.argv[2]), sys.argv[3])
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    image_folder(tmp_path / "images", count=8)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def headrace(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_report_follows_the_output_of_a_script(script: Path) -> None:
    done = headrace("run", "train.py", "images", "2", "7", folder=script.parent)
    assert done.returncode == 7
    epochs = ["epoch 0 8", "validation 12", "epoch 1 8", "validation 12"]
    assert done.stdout.splitlines() == [*epochs, "derived 12"]
    report = re.sub(r"[\d,]+ samples/s, \d+%", "N samples/s, N%", done.stderr)
    assert report.splitlines() == [
        "headrace: 3 loaders",
        "  train.py:19",
        "    plan: native (C++ threads read, decode, transform and write the batch)",
        "    2 epochs, 4 batches, 16 samples",
        "    N samples/s, N% of the time waiting for data",
        "  train.py:22",
        "    plan: python (the dataset's own code makes the samples)",
        "    images: Pillow decodes those that the dataset opens; native code does so in worker processes"
        " (num_workers=1 or more)",
        "    2 epochs, 6 batches, 24 samples",
        "    N samples/s, N% of the time waiting for data",
        "  to keep it, change train.py:4:",
        "    -from torch.utils.data import DataLoader, Dataset",
        "    +from torch.utils.data import Dataset",
        "    +from headrace import DataLoader",
        "  left as it is: __main__.Derived of train.py:23, a subclass of torch's DataLoader",
    ]


OWN = """
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose, RandomResizedCrop, ToTensor

class Own(Dataset):
    transform = Compose([RandomResizedCrop(16), ToTensor()])
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return self.transform(Image.open("image.jpg"))

if __name__ == "__main__":
    for batch in DataLoader(Own(), batch_size=4, num_workers=1):
        pass
"""


def test_a_loader_that_is_gone_is_reported_as_its_workers_found_it(tmp_path: Path) -> None:
    noise(240, 320, 0).save(tmp_path / "image.jpg")
    (tmp_path / "own.py").write_text(OWN)
    done = headrace("run", "--explain", "own.py", folder=tmp_path)
    assert done.returncode == 0
    assert "    images: native code decodes and transforms them, and writes the tensors" in done.stderr
    assert "    Own (own.py:6)  python" in done.stderr


def test_a_script_that_a_signal_ends(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text("import os; print('here', flush=True); os.kill(os.getpid(), 15)")
    done = headrace("run", "killed.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "here\n")


@pytest.mark.long
def test_explain_ends_when_all_loaders_were_seen(script: Path) -> None:
    arguments = ("explain", "train.py", "images", "50", "1")
    done = headrace(*arguments, folder=script.parent, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "\\xd7" in done.stdout, "what ASCII lacks is printed as Python prints it to standard error"
    assert re.findall(r"^train.py:.*\nplan: \w+", done.stdout, re.MULTILINE) == [
        "train.py:19\nplan: native",
        "train.py:22\nplan: python",
    ]
    assert re.findall("^epoch.*", done.stdout, re.MULTILINE) == ["epoch 0 4"]


COMPARED = r"^(\S+):\d+\nHeadrace [\d,]+ samples/s, torch's DataLoader [\d,]+ samples/s: \S+ times as fast"


@pytest.mark.long
def test_compare_prints_the_ratio_of_each_loader(script: Path) -> None:
    done = headrace("run", "--compare", "0.5", "-m", "train", "images", "50", "1", folder=script.parent)
    assert done.returncode == 0, done.stderr
    assert re.findall(COMPARED, done.stdout, re.MULTILINE) == ["train.py", "train.py"]


def test_a_compared_loader_gives_one_batch_and_ends_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(replacement.VARIABLE, "compare:0.01")
    loader = run.ReplacingDataLoader(range(4), batch_size=2)
    assert [batch.tolist() for batch in loader] == [[0, 1]]
    [place] = re.findall(COMPARED, capsys.readouterr().out, re.MULTILINE)
    assert Path(place).name == "test_run.py"
    with pytest.raises(SystemExit):
        list(loader)


@pytest.mark.parametrize(("mode", "printed"), [("explain", "plan: python"), ("compare:1", "has no batches")])
def test_a_loader_without_batches_is_no_error(
    mode: str, printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(replacement.VARIABLE, mode)
    assert list(run.ReplacingDataLoader([], batch_size=2)) == []
    assert printed in capsys.readouterr().out


def test_programs_that_take_one_batch_of_each_epoch_are_explained_and_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(replacement.VARIABLE, "explain")
    peeked, taken = (run.ReplacingDataLoader(range(4), batch_size=2) for _ in range(2))
    next(iter(peeked))
    for _ in range(2):
        next(iter(taken))
    assert len(list(peeked)) == 1, "it was looked at before training"
    assert capsys.readouterr().out.count("plan: ") == 2
    for loader in (peeked, taken):
        with pytest.raises(SystemExit):
            next(iter(loader))


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> run.Report:
    report = run.Report()
    monkeypatch.setenv(replacement.VARIABLE, "report")
    monkeypatch.setattr(run.ReplacingDataLoader, "report", report)
    return report


def test_the_report_of_iterators_at_once_in_a_folder_that_is_gone(
    report: run.Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    loader = run.ReplacingDataLoader(range(4), batch_size=2)
    iterators = [iter(loader) for _ in range(3)]
    for iterator in iterators:
        list(iterator)
    (tmp_path / "gone").rmdir()
    report.write()
    said = capsys.readouterr().err
    assert f"  {__file__}:" in said
    assert "    plan: python" in said
    assert "    3 epochs, 6 batches, 12 samples" in said


def test_another_rank_of_torch_distributed_reports_nothing(
    report: run.Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "detect_rank", lambda: (1, 2))  # to have it, two processes must meet
    list(run.ReplacingDataLoader(range(4), batch_size=2))
    report.write()
    assert not capsys.readouterr().err


def test_short_epochs_are_compared_as_a_whole() -> None:
    starts = []

    def begin() -> Iterator[int]:
        starts.append(time.perf_counter())
        time.sleep(0.02)
        return iter(range(4))

    rate = run.Rate()
    rate.measure(begin, 0.1)
    assert rate.batches == 4 * (len(starts) - 1) >= 8
    assert rate.seconds >= 0.02 * (len(starts) - 1)


def test_programs_without_torch_start_as_usual(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nif 'HEADRACE_RUN' in os.environ: print('shadowed')"
    )
    program = "import sys; print('torch' in sys.modules, any('_startup' in entry for entry in sys.path))"
    (tmp_path / "plain.py").write_text(program)
    done = headrace("run", sys.executable, "plain.py", folder=tmp_path, PYTHONPATH=_path(tmp_path))
    assert (done.returncode, done.stdout) == (0, "shadowed\nFalse False\n"), done.stderr
    assert not done.stderr


def _path(folder: Path) -> str:
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def test_what_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("a file that may be executed, without a line that says by what")
    script.chmod(0o755)
    for arguments, message in (
        ((str(script),), "script: Exec format error"),
        (("--epochs", "3", "train.py"), "the script's options come after its name"),
        ((str(tmp_path / "missing.py"),), "missing.py is neither a script nor a program on PATH"),
    ):
        done = run_command("run", *arguments)
        assert done.exit_code == 2
        assert message in " ".join(done.output.replace("│", "").split())


@pytest.mark.long
def test_torchrun_starts_ranks_of_which_the_first_reports(script: Path) -> None:
    command = ("torchrun", "--standalone", "--nproc-per-node=2", "train.py", "images", "1", "0")
    done = headrace("run", *command, folder=script.parent)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 0 8") == 2
    assert done.stderr.count("headrace: 2 loaders") == 1
