"""Feeds the targets of tests/support/fuzz_targets.py with mutated bytes, each for so many seconds.

    python tools/fuzz.py --seconds 60 [--only tar pack_index] [--keep FOLDER]

Guided by coverage where atheris is installed (pip install atheris), else by a fixed seed. What a target fails
at is left in FOLDER; run it again by ``--file FILE --only TARGET``, and put it into
packages/headrace/tests/fuzz/corpus/TARGET once the error is fixed.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

# No input may take longer.
SECONDS_FOR_ONE = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each target (60)")
    parser.add_argument("--only", nargs="+", default=[], help="names of targets")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "headrace-fuzz")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations, where atheris isn't installed")
    parser.add_argument("--file", type=Path, help="run this input once")
    arguments = parser.parse_args()
    arguments.keep.mkdir(parents=True, exist_ok=True)
    if len(arguments.only) == 1:
        one(arguments.only[0], arguments)
        return
    from support.fuzz_targets import TARGETS

    failed = []
    for name in arguments.only or TARGETS:
        # A process each: one that crashes doesn't keep the others from being run.
        command = [sys.executable, __file__, "--only", name, "--seconds", str(arguments.seconds)]
        command += ["--keep", str(arguments.keep), "--seed", str(arguments.seed)]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the inputs are in {arguments.keep}")


def one(name: str, arguments: argparse.Namespace) -> None:
    if importlib.util.find_spec("atheris") is not None and arguments.file is None:
        guided(name, arguments)
        return
    from support.fuzz_targets import TARGETS
    from support.mutations import mutated

    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        target = TARGETS[name](Path(folder))
        if arguments.file is not None:
            target.run(arguments.file.read_bytes())
            return
        seeds = [*target.seeds, *(path.read_bytes() for path in corpus(name))]
        kept, begin, runs, slowest = arguments.keep / f"{name}-failed", time.monotonic(), 0, 0.0
        while time.monotonic() - begin < arguments.seconds:
            data = mutated(rng.choice(seeds), seeds, rng)
            kept.write_bytes(data)  # before: it may end the process
            start = time.monotonic()
            target.run(data)
            runs, slowest = runs + 1, max(slowest, time.monotonic() - start)
            if slowest > SECONDS_FOR_ONE:
                sys.exit(f"{name}: an input takes {slowest:.0f} s: {kept}")
        kept.unlink()
        seconds = time.monotonic() - begin
        print(f"{name}: {runs:,} inputs in {seconds:.0f} s, no report, slowest {slowest:.2f} s", flush=True)


def guided(name: str, arguments: argparse.Namespace) -> None:
    """By atheris: libFuzzer, with the coverage of Python's bytecode."""
    import atheris

    with atheris.instrument_imports(include=["headrace", "tarfile"]):
        from support.fuzz_targets import TARGETS

    found = arguments.keep / f"{name}-corpus"
    found.mkdir(exist_ok=True)
    folder = tempfile.mkdtemp(dir=memory())  # libFuzzer ends the process itself
    target = TARGETS[name](Path(folder))
    for number, seed in enumerate([*target.seeds, *(path.read_bytes() for path in corpus(name))]):
        (found / f"seed-{number}").write_bytes(seed)
    options = [f"-max_total_time={arguments.seconds}", f"-timeout={SECONDS_FOR_ONE}", "-rss_limit_mb=4096"]
    options += ["-max_len=65536", "-print_final_stats=1", f"-artifact_prefix={arguments.keep}/{name}-"]
    print(f"== {name}", flush=True)
    atheris.Setup([sys.argv[0], *options, str(found)], target.run)
    atheris.Fuzz()


def corpus(name: str) -> list[Path]:
    """Inputs that failed once."""
    return sorted((ROOT / "packages/headrace/tests/fuzz/corpus" / name).glob("*"))


def memory() -> str | None:
    """Files that are written a thousand times a second should not reach a disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    main()
