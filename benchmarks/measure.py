"""Measures everything that the README and docs/ quote, on one commit, and keeps it in benchmarks/results.

    python benchmarks/measure.py --data data --peers .venv-peers         (some hours on two idle cores)
    python benchmarks/measure.py --only pipelines floor
    python benchmarks/measure.py --list                                  (what is done, and what is missing)

Each benchmark writes to benchmarks/work and continues there after an interruption: run the command again.
What is complete is moved to results/DATE-NAME.json; `make figures` draws the pages from it. Each benchmark is
of one machine, which is stated beside its figures: different ones may run on different machines.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import machine

HERE = Path(__file__).resolve().parent
RESULTS, WORK = HERE / "results", HERE / "work"


@dataclass(frozen=True)
class Benchmark:
    """A script whose record is quoted.

    Attributes:
        name: of the file of results.
        command: the script and its arguments.
        minutes: that it takes on two cores, about.
        python: the peer whose interpreter runs it.
        module: a module of benchmarks/ that only this benchmark imports.
    """

    name: str
    command: str
    minutes: int
    python: str | None = None
    module: str | None = None

    @property
    def work(self) -> Path:
        """The file that the benchmark writes."""
        return WORK / ("peers.json" if self.name == "loaders" else f"{self.name}.json")

    @property
    def script(self) -> str:
        """Where the script is in benchmarks/."""
        return self.command.split()[0]

    def complete(self) -> bool:
        """True if the newest results are those of the present code, on whichever machine."""
        commit = machine.newest(self.name).get("machine", {}).get("commit")
        others = [benchmark for benchmark in BENCHMARKS if benchmark.script != self.script]
        files = {"measure.py", *(name for each in others for name in (each.script, each.module) if name)}
        without = (f":!benchmarks/{name}" for name in sorted(files))
        same = ("git", "diff", "--quiet", commit or "", "--", *machine.MEASURED, *without)
        return bool(commit) and subprocess.run(same, cwd=machine.ROOT, check=False).returncode == 0


BOTH = (
    "'RandomResizedCrop, flip' 'crop, ColorJitter with hue' 'crop, RandAugment'"
    " 'Resize, RandomRotation, ColorJitter'"
)
PIPELINES = "pipelines.py --data {data} --count 600 --output {out}"
REMOTE = "remote.py {data}/pictures-2000 --megabytes 20 --json {out}"
BENCHMARKS = (
    Benchmark("pipelines", PIPELINES, 75),
    Benchmark("pipelines-peers", f"{PIPELINES} --peers {{peers}} --rows {BOTH}", 15),
    Benchmark("loaders", "peers.py --data {data} --peers {peers} --repetitions 3 --out {work}", 30),
    Benchmark("floor", "floor.py --short --missing --output {out}", 15),
    Benchmark("commands", "commands.py {data}/pictures-2000 --json {out}", 5),
    Benchmark("worker-start", "worker_start.py --json {out}", 5),
    Benchmark("tuning", "tuning.py --data {data} --rounds 2 --seconds 2.5 --json {out}", 15),
    Benchmark("overlap", "overlap.py --json {out}", 2),
    Benchmark("packing", "packing.py {data}/pictures-2000 --out {out}", 5),
    Benchmark("remote", f"{REMOTE} --peers {{peers}}/streaming/bin/python", 15, module="remote_peers.py"),
    Benchmark("decoders", "decoders.py --data {data} --out {out}", 10, "decoders"),
    Benchmark("augmentations", "augmentations.py --data {data} --output {out}", 45),
    Benchmark("stalls", "stalls/run.py --entrant doctor --data {data} --json {out}", 60),
    Benchmark("scripts", "training_scripts.py {data}/pictures-2000 --json {out}", 15),
)


def main() -> int:
    """Runs what isn't complete; exits with 1 if a benchmark has failed or, with --list, is missing."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser.add_argument("--data", type=Path, default=Path("data"), help="where the images are kept or made")
    parser.add_argument("--peers", type=Path, default=Path(".venv-peers"), help="the peers' environments")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--list", action="store_true", help="only list the benchmarks")
    arguments = parser.parse_args()
    if not arguments.list:
        folders = ("--out", arguments.data / "pictures-2000", "--cache", arguments.data / "cache")
        subprocess.run([sys.executable, HERE / "pictures.py", *folders], check=True)
    failed = []
    for benchmark in BENCHMARKS:
        if benchmark.name not in arguments.only:
            continue
        if benchmark.complete():
            print(f"{benchmark.name:18}complete")
            continue
        if arguments.list:
            print(f"{benchmark.name:18}missing, about {benchmark.minutes} minutes")
            failed.append(benchmark.name)
            continue
        WORK.mkdir(exist_ok=True)
        python = sys.executable
        if benchmark.python is not None:
            python = str(arguments.peers / benchmark.python / "bin" / "python")
        places = {"data": arguments.data, "peers": arguments.peers, "work": WORK, "out": benchmark.work}
        command = f"{python} {HERE}/{benchmark.command.format(**places)}"
        print(f"{benchmark.name}: {command}", flush=True)
        if subprocess.run(command, shell=True, check=False).returncode or not benchmark.work.exists():
            failed.append(benchmark.name)
            continue
        date = machine.describe()["date"][:10]
        os.replace(benchmark.work, RESULTS / f"{date}-{benchmark.name}.json")
    if failed:
        print(f"{'missing' if arguments.list else 'failed'}: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
