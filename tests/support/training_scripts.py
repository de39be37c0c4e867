"""Runs code of other projects with torch's loader, or with `headrace.DataLoader` in its place."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

import pytest

DATA = Path(__file__).parents[2] / "data"
SECONDS = 300
# Python imports it when it starts: in processes that scripts start by themselves, too.
IN_TORCHS_PLACE = """
import torch.utils.data as data
import headrace
data.DataLoader = data.dataloader.DataLoader = headrace.DataLoader
"""
# What differs from run to run: places, times and rates, addresses in memory, process numbers.
VARYING = re.compile(
    r"0x[0-9a-f]+|/\S+?\.py:\d+|\d[\d.]*(±[\d.]+)? ?[KMG]?(it/s|B/s|ms|s\b)|pid=\d+|tmp\w+"
    r"|(?<=runtime': ')[\d.]+|(?<=per_second': ')[\d.]+"
)


def fetched(url: str, sha256: str, pattern: str) -> Path:
    """The folder in data/ with those files of a source archive whose paths match; it is fetched once."""
    name = re.split(r"[-_]\d", url.rpartition("/")[2])[0]
    folder = DATA / f"{name}-{sha256[:12]}"
    if folder.is_dir():
        return folder
    unfinished = DATA / f"{folder.name}.{os.getpid()}"
    unfinished.mkdir(parents=True)
    try:
        archive = unfinished / "archive"
        with urllib.request.urlopen(url, timeout=60) as response, archive.open("wb") as file:
            shutil.copyfileobj(response, file)
        assert hashlib.sha256(archive.read_bytes()).hexdigest() == sha256
        with tarfile.open(archive) as tar:
            for member in tar:
                content = tar.extractfile(member) if fnmatch.fnmatch(member.name, pattern) else None
                if content is not None:
                    (unfinished / Path(member.name).name).write_bytes(content.read())
        archive.unlink()
        unfinished.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # as another process has fetched it meanwhile
            pytest.skip(f"{url} can't be fetched: {error}")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def starting_with(code: str, place: Path) -> str:
    """PYTHONPATH with which every Python process runs `code` first; "" for none."""
    if not code:
        return os.pathsep.join(sys.path)
    place.mkdir(parents=True)
    (place / "sitecustomize.py").write_text(code)
    return os.pathsep.join([str(place), *sys.path])


def steady(lines: list[str], place: Path) -> list[str]:
    """Returns what is the same from run to run; of a progress bar, that is its last state."""
    last = [line.rpartition("\r")[2].replace(str(place), "PLACE") for line in lines]
    return [VARYING.sub("…", line) for line in last]


def failed_tests(
    loader: str, selection: list[str], place: Path, test_seconds: int, seconds: int
) -> dict[str, str]:
    """Messages of the tests in a folder that fail, by name, run with torch's loader or with "headrace"."""
    (place / "pytest.ini").write_text("[pytest]\n")
    report = place / "report.xml"
    command = [sys.executable, "-m", "pytest", *selection, f"--junitxml={report}", "-q"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", str(test_seconds)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = starting_with(IN_TORCHS_PLACE if loader == "headrace" else "", place / "start")
    done = subprocess.run(
        command,
        cwd=place,
        env={**kept, "PYTHONPATH": path, "PYTORCH_TEST_WITH_SLOW": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert report.is_file(), done.stdout + done.stderr
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        for problem in (*case.iter("failure"), *case.iter("error")):
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            found[name] = problem.get("message", "")
    return found


def run(
    command: list[str], place: Path, environment: dict[str, str], ranks: int = 1
) -> tuple[list[list[str]], list[str]]:
    """Lines on standard output by rank, and those on standard error of all ranks."""
    place.mkdir(exist_ok=True)
    processes = []
    for rank in range(ranks):
        offline = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true"}
        offline["RAY_ADDRESS"] = "local"  # not a cluster of other tests that run meanwhile
        settings = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", **offline}
        if ranks > 1:
            settings |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            settings |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        processes.append(
            subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, **settings, **environment},
                cwd=place,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    outputs, errors = [], []
    for process in processes:
        # Decoded here, because Popen's text mode turns the "\r" of a progress bar into an end of the line.
        out, problems = (each.decode() for each in process.communicate(timeout=SECONDS))
        assert process.returncode == 0, f"{place.name}: {out}{problems}"
        outputs.append(out.rstrip("\n").split("\n"))
        errors += problems.rstrip("\n").split("\n")
    return outputs, errors
