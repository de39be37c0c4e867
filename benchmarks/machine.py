"""The conditions of a measurement: the machine, its software, how busy it is with other things."""

import json
import os
import platform
import re
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results"
# What a measurement depends on.
MEASURED = ("packages/*/src/*", "packages/*/native/*", "benchmarks/*.py", ":!benchmarks/figures.py")


def describe() -> dict:
    """CPU, cores, memory, kernel, Python, date and commit: to be stored beside every figure."""
    commit = _output("git", "rev-parse", "HEAD")
    return {
        "cpu": _cpu(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "cores_of_machine": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "system": _system(),
        "python": platform.python_version(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit,
        "uncommitted_changes": bool(_output("git", "status", "--porcelain")) if commit else None,
    }


def continued(path: Path) -> dict[str, Any]:
    """The record in a file, or an empty one if there is none of the present code on this machine."""
    if not path.exists():
        return {}
    record = json.loads(path.read_text(encoding="utf-8"))
    then, now = record.get("machine", {}), describe()
    same = ("git", "diff", "--quiet", then.get("commit") or "-", "--", *MEASURED)
    here = all(then.get(key) == now[key] for key in ("cpu", "cores_usable"))
    return record if here and subprocess.run(same, cwd=ROOT, check=False).returncode == 0 else {}


def newest(name: str) -> dict[str, Any]:
    """The newest record of that name in results/, or an empty one if there is none."""
    form = re.compile(
        rf"\d{{4}}-\d\d-\d\d-(epyc-(2-cores-)?)?{re.escape(name)}\.json"
    )  # of earlier runs, too
    files = sorted(path for path in RESULTS.iterdir() if form.fullmatch(path.name))
    return {"file": files[-1].name, **json.loads(files[-1].read_text(encoding="utf-8"))} if files else {}


def keep(record: dict[str, Any], path: Path) -> None:
    """Writes a record, replacing what the file had."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _system() -> str:
    release = Path("/etc/os-release")
    if not release.is_file():
        return platform.system()
    fields = dict(
        line.split("=", 1) for line in release.read_text(encoding="utf-8").splitlines() if "=" in line
    )
    return fields.get("PRETTY_NAME", platform.system()).strip('"')


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class Clock:
    """Processor time of the whole machine since it was made, in core-seconds: busy, and stolen."""

    def __init__(self) -> None:
        self._start = self._read()

    @staticmethod
    def _read() -> tuple[float, float]:
        fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
        user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
        tick = os.sysconf("SC_CLK_TCK")
        return (user + nice + system + irq + softirq) / tick, steal / tick

    def elapsed(self) -> tuple[float, float]:
        now = self._read()
        return now[0] - self._start[0], now[1] - self._start[1]


def foreign_load(seconds: float = 2.0) -> float:
    """Cores that other processes keep busy now (or a hypervisor takes), over `seconds` of doing nothing."""
    clock, start = Clock(), time.monotonic()
    time.sleep(seconds)
    return sum(clock.elapsed()) / (time.monotonic() - start)
