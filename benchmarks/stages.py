"""The cost of each stage of a native sample: by instructions (callgrind) and by time (perf).

Functions are distinguished by name in a build with debug symbols, and added up per stage. Instructions don't
depend on the machine's load; valgrind knows no AVX-512, so that they are those of the AVX2 kernels. Time is
that of the kernels that this processor gets, on one thread.

    make stages                 (needs valgrind and perf: apt-get install valgrind linux-perf)
"""

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

import machine
import pictures

HERE = Path(__file__).resolve().parent
ROWS = ("headrace_folder", "headrace_entries", "headrace_restart")

# The first pattern that a function's name matches says its stage.
STAGES = (
    ("inverse DCT", r"inverse_dct|transform_(two|one)|own::.*transform"),
    ("upsampling, color", r"::row<|own::.*(h2v1|h2v2|gray|full)\(|PixelKernels|mix_rows|put_row|repeat_"),
    ("entropy: stepped over", r"own::.*skip"),
    ("entropy: decoded", r"own::.*(decode|Stream|Tables|Scan|unstuff|prepare|read_)|EntryIndex|checksum"),
    ("resize", r"horizontal|vertical|Axis|weights|Passes|Resizer|Bilinear|coefficient|footprint"),
    ("write", r"store|lookup|planes|Value32|Value16|interleave"),
    ("read", r"read_file|read_extent|pread|copy_user|copy_to_iter|filemap|rep_movs|\b(do_sys_)?open|close"),
    ("other", r""),
)


def stage_of(function: str) -> str:
    return next(stage for stage, pattern in STAGES if re.search(pattern, function))


def run(command: list[str], package: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(package)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} … ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def work(row: str, arguments: argparse.Namespace, epochs: int, threads: int) -> list[str]:
    """The command that makes one warm-up pass and `epochs` more."""
    command = [sys.executable, str(HERE / "peer_run.py"), row, "--folder", str(arguments.folder)]
    command += ["--work", str(arguments.work), "--epochs", str(epochs), "--threads", str(threads)]
    return [*command, "--dtype", arguments.dtype]


def instructions(row: str, arguments: argparse.Namespace) -> Counter[str]:
    """Per stage, of one pass over the images; only what a sample's making takes is counted."""
    out = arguments.work / f"callgrind-{row}"
    tool = ["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={out}"]
    tool.append("--toggle-collect=headrace::SampleMaker::make*")
    run([*tool, *work(row, arguments, epochs=0, threads=0)], arguments.package)
    listed = run(["callgrind_annotate", "--threshold=100", "--auto=no", str(out)], arguments.package)
    found: Counter[str] = Counter()
    for count, function in re.findall(r"^\s*([\d,]+) \([^)]*\)\s+\S*?:(.*)$", listed, re.MULTILINE):
        found[stage_of(function)] += int(count.replace(",", ""))
    return found


def samples(row: str, arguments: argparse.Namespace) -> Counter[str]:
    """Samples of the clock per stage, in the native library and in the kernel's reading."""
    out = arguments.work / f"perf-{row}"
    recorder = ["perf", "record", "-q", "-F", "4000", "-o", str(out), "--"]
    run([*recorder, *work(row, arguments, epochs=arguments.epochs, threads=1)], arguments.package)
    fields = ["--stdio", "-q", "-F", "sample,dso,sym", "-t", ";", "-i", str(out)]
    found: Counter[str] = Counter()
    for line in run(["perf", "report", *fields], arguments.package).splitlines():
        count, library, symbol = (part.strip() for part in [*line.split(";"), "", ""][:3])
        if count.isdigit() and (library == "libheadrace.so" or stage_of(symbol) == "read"):
            found[stage_of(symbol)] += int(count)
    return found


def table(results: dict[str, dict[str, Counter[str]]], count: int) -> Table:
    drawn = Table(title="Cost of a sample, per stage", title_justify="left")
    drawn.add_column("stage")
    for row in results:
        drawn.add_column(f"{row.removeprefix('headrace_')}\n1,000 instructions", justify="right")
        drawn.add_column("share", justify="right")
        drawn.add_column("of time", justify="right")
    for stage, _ in STAGES:
        cells = [stage]
        for found in results.values():
            counted, clock = found["instructions"], found["samples"]
            cells.append(f"{counted[stage] / count / 1000:,.0f}")
            cells.append(f"{counted[stage] / counted.total():.1%}")
            cells.append(f"{clock[stage] / max(1, clock.total()):.1%}")
        drawn.add_row(*cells)
    totals = [f"{found['instructions'].total() / count / 1000:,.0f}" for found in results.values()]
    drawn.add_row("all", *[cell for total in totals for cell in (total, "", "")], style="bold")
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="where images are kept or made")
    parser.add_argument("--package", type=Path, required=True, help="folder with headrace, symbols and all")
    parser.add_argument("--count", type=int, default=400, help="images (400)")
    parser.add_argument("--epochs", type=int, default=20, help="timed passes (20)")
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    parser.add_argument("--out", type=Path, default=HERE / "work" / "stages.json")
    arguments = parser.parse_args()
    arguments.folder = (arguments.data / f"pictures-{arguments.count}").resolve()
    arguments.work = (arguments.data / f"peers-{arguments.count}").resolve()
    arguments.work.mkdir(parents=True, exist_ok=True)
    pictures.ensure(arguments.folder, arguments.count, cache=arguments.data / "cache")
    results = {}
    with Console(stderr=True).status("Counting") as status:
        for row in ROWS:
            run([*work(row, arguments, 0, 1), "--prepare-only"], arguments.package)
            status.update(f"{row}: instructions")
            counted = instructions(row, arguments)
            status.update(f"{row}: time")
            results[row] = {"instructions": counted, "samples": samples(row, arguments)}
    record = {"machine": machine.describe(), "images": arguments.count, "rows": results}
    machine.keep(record, arguments.out)
    Console(width=160).print(table(results, arguments.count))


if __name__ == "__main__":
    main()
