"""Runs every check that a release needs on one commit, and writes one page of results.

    python tools/release-check.py                   (some hours on two cores)
    python tools/release-check.py --only soak asan
    python tools/release-check.py --list

The commit is checked out in a folder of its own, so that the working tree may change meanwhile. Results are
kept after each check, in docs/release-check.json with a page beside it: run the command again after an
interruption, on another machine, too, and it continues with what has not passed yet (with --commit, if that
is no longer the newest). A check that passed on an earlier commit is not repeated if none of the code that
it depends on has changed since. Where only tests have changed, pytest runs those files alone, together with
the files of tests that had failed, and the page names all of these runs. A check that needs a program that
this machine lacks is listed as not run, with the program's name.
Pythons of pyenv run with, for example, PYENV_VERSION=3.11:3.10:3.12:3.13 in the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHOWN_LINES = 15  # of the output of a check that failed
TESTS = "packages/headrace/tests"
# Libraries without which tests are skipped; the scripts of docs/run.md use the last two.
INTEGRATIONS = (
    ".venv/bin/python -m pip install -q"
    " $(.venv/bin/python tools/build-tools.py --only integrations ray) fastai mmengine"
)
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
# What checks depend on, as pathspecs of git. PROGRAMS is for those that fuzz and, with CHAOS, run epochs with
# faults: they import neither the commands nor what takes the place of torch's class. LOADER is for checks
# that use neither the doctor nor tests, unless they name those as well; WITHOUT_PACKS for those that neither
# make nor read packs. CODE leaves out documents, their tests, this script and the one that runs all
# benchmarks, which count for the check "test" alone. DEFAULT also leaves out the programs that
# only "exits", "chaos" and "soak" run, and RUN leaves out all tests.
RUNNERS = (":!tools/release-check.py", ":!benchmarks/measure.py")
NATIVE = ("packages/headrace/native", "tools/neon-test.sh", "Makefile")
WITHOUT_PACKS = tuple(f":!packages/headrace/src/headrace/{name}" for name in ("packs", "sources/pack_*.py"))
PROGRAMS = (
    *NATIVE,
    *("packages/headrace/src", f"{TESTS}/fuzz"),
    *("tests/support", "tools/mutate.py", ":!**/test_*.py", f":!{TESTS}/fuzz/corpus"),
    *(f":!packages/headrace/src/headrace/{name}" for name in ("cli", "run.py", "replacement.py")),
    *WITHOUT_PACKS,
)
CHAOS = f"{TESTS}/chaos"
LOADER = (
    *(f"packages/headrace/{name}" for name in ("src", "native", "pyproject.toml")),
    *("tests/support", "tests/accelerator", "examples", "benchmarks/*.py", "conftest.py"),
    *("pyproject.toml", "Makefile", "tools", *RUNNERS, ":!**/*.md", ":!tests/accelerator/test_*.py"),
)
INTEGRATION = (*LOADER, f"{TESTS}/integrations", *WITHOUT_PACKS)
CODE = (":!*.md", ":!docs", ":!tests/docs", ":!benchmarks/results", *RUNNERS)
DEFAULT = (*CODE, f":!{CHAOS}/leaving.py", f":!{CHAOS}/soak.py")
RUN = (*CODE, ":!tests", ":!packages/*/tests/*")
ALL = (":!docs/release-check.*",)


@dataclass(frozen=True)
class Check:
    """A command that passes if it exits with 0.

    Attributes:
        name: what it is called on the command line and on the page.
        command: run by bash in the root of the checkout. $TESTS is empty, or the files of tests that failed
            in an earlier run or have changed since, if nothing else has.
        inputs: the files that it depends on, as pathspecs of git.
        hours: at most; it has failed if it takes longer.
        needs: programs without which it can't run.
    """

    name: str
    command: str
    inputs: tuple[str, ...] = CODE
    hours: float = 1.0
    needs: tuple[str, ...] = ()


def long(name: str, selected: str, hours: float, inputs: tuple[str, ...]) -> Check:
    """A part of `make test-long`; all parts together are the whole. A test without a time limit of its own
    has half an hour: the usual five minutes are too few on a slow machine that runs two checks at once."""
    arguments = f'"${{TESTS:-{selected}}} -o timeout=1800"'
    return Check(name, f"make setup && {INTEGRATIONS} && make test-long ARGS={arguments}", inputs, hours)


def apart(name: str, options: str, before: str = "", needs: tuple[str, ...] = ()) -> Check:
    """The default tests in a virtual environment of their own, which takes 5 GB and is removed again."""
    folder = f".venv-{name}"
    command = f'{before}make test {options} ARGS="$TESTS" VENV={folder} && rm -rf {folder}'
    return Check(name, command.replace("  ", " "), DEFAULT, needs=needs)


CHECKS = (
    Check("test", "make test", ALL),
    Check("lint", "make lint", ALL),
    Check("docs", "make docs", ALL),
    apart("oldest", "TORCH=2.7.1 TORCHVISION=0.22.1 PILLOW=12.0.0"),  # of what is supported
    apart("pillow-12", "PILLOW=12.0.0"),
    *(
        apart(f"python{version}", f"PYTHON=python{version}", needs=(f"python{version}",))
        for version in PYTHONS
        if version != f"{sys.version_info.major}.{sys.version_info.minor}"
    ),
    long("torch-tests", f"{TESTS}/integrations/test_torch_tests.py", 4, INTEGRATION),
    long("torchdata", f"{TESTS}/integrations/test_torchdata.py", 1, INTEGRATION),
    long("integrations", f"{TESTS}/integrations --ignore-glob=*/test_torch*.py", 4, INTEGRATION),
    long("exits", CHAOS, 4, (*LOADER, CHAOS, *WITHOUT_PACKS)),
    long(
        "long-loader",
        f"{TESTS} --ignore={TESTS}/integrations --ignore={CHAOS}",
        4,
        (*LOADER, TESTS, f":!{CHAOS}"),
    ),
    long("long-doctor", "packages/headrace-doctor/tests tests", 4, DEFAULT),
    apart("without-codecs", "", before="SKBUILD_CMAKE_DEFINE='HEADRACE_PNG=OFF;HEADRACE_WEBP=OFF' "),
    Check("native-test", "make native-test", NATIVE),
    Check(
        "native-test-without-codecs",
        "make native-test BUILD=build/plain CMAKE_OPTIONS='-DHEADRACE_PNG=OFF -DHEADRACE_WEBP=OFF'",
        NATIVE,
    ),
    Check("neon-test", "make neon-test", NATIVE, needs=("aarch64-linux-gnu-g++", "qemu-aarch64")),
    Check("tidy", "make tidy", NATIVE, 2, ("clang-tidy", "clang++")),
    Check("asan", "make asan MUTATIONS=100000", PROGRAMS, 4),
    Check("tsan", "make tsan", NATIVE),
    Check("valgrind", "make valgrind", NATIVE, needs=("valgrind",)),
    Check("fuzz", "make fuzz FUZZ_SECONDS=300", (*LOADER, f"{TESTS}/fuzz"), 4),
    Check("fuzz-chains", "make fuzz-chains PAIRS=2000000", PROGRAMS, 4),
    Check("fuzz-chains-asan", "make fuzz-chains-asan PAIRS=200000", PROGRAMS, 4),
    Check("fuzz-images", "make fuzz-images FILES=20000", PROGRAMS, 2),
    Check("chaos", "make chaos", (*PROGRAMS, CHAOS), 2),
    Check("soak", "make soak SOAK_SECONDS=1800", (*PROGRAMS, f"{CHAOS}/soak.py")),
    Check("wheel-check", "make wheel-check", RUN),
    Check("cross-wheel", "make cross-wheel", LOADER, needs=("aarch64-linux-gnu-g++", "qemu-aarch64")),
    Check("audit", "make audit", RUN),
    Check("demo", "make demo", RUN),
    Check("bench-quick", "make bench-quick", RUN),
    # That what benchmarks/measure.py lists was measured with this commit's code.
    Check("measured", "python3 benchmarks/measure.py --list", ALL),
)


@dataclass(frozen=True)
class Result:
    """The outcome of a check.

    Attributes:
        outcome: "passed", "failed" or "not run".
        seconds: how long it took.
        date: when it ended, in UTC.
        text: a line of the reason and the summary of its tests, with those of the runs that it completes;
            then the end of its output, or what it left out.
        machine: on which it ran.
        commit: on which it ran.
    """

    outcome: str
    seconds: float
    date: str
    text: str
    machine: str = ""
    commit: str = ""


def missing_programs(check: Check) -> list[str]:
    """The programs that a check needs and that don't run here: pyenv has names for Pythons that don't."""
    return [
        name
        for name in check.needs
        if shutil.which(name) is None
        or subprocess.run([name, "--version"], capture_output=True, check=False).returncode
    ]


def run(check: Check, checkout: Path, log: Path, earlier: Result | None, tests: list[str]) -> Result:
    """Runs a check in the checkout, with its output in `log`: `tests` alone, if there are any, which failed
    in the run `earlier` or have changed since."""
    missing = missing_programs(check)
    if missing:
        return Result("not run", 0.0, now(), f"{' and '.join(missing)} not installed")
    start = time.monotonic()
    with log.open("wb") as output:
        command = ["bash", "-c", check.command]
        process = subprocess.Popen(
            command,
            cwd=checkout,
            env={**os.environ, "TESTS": " ".join(tests)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=3600 * check.hours)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # what it has started as well
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            status = None
    lines = log.read_text(errors="replace").replace(f"{checkout}/", "").splitlines()
    seconds = time.monotonic() - start
    where = machine(), git("rev-parse", "--short=12", "HEAD", folder=checkout)
    ended = f"exit code {status}" if status is not None else f"stopped after {check.hours:g} hours"
    said = (" ".join(tests), ended if status != 0 else "", summary_of(lines))
    text = ": ".join(part for part in said if part)
    details = left_out(lines) if status == 0 else lines[-SHOWN_LINES:]
    if earlier and tests:
        before, *left = earlier.text.splitlines()
        text += f"; on {earlier.commit}: {before}"
        if status == 0 and earlier.outcome == "passed":
            details = left
    outcome = "passed" if status == 0 else "failed"
    return Result(outcome, seconds, now(), "\n".join([text, *details]), *where)


def summary_of(lines: list[str]) -> str:
    """How many tests passed, failed and were skipped, in pytest's words."""
    return ([line.strip("= ") for line in lines if " passed" in line] or [""])[-1]


def left_out(lines: list[str]) -> list[str]:
    """What a check that passed did not do: why pytest skipped tests, such as ``11 skipped: no accelerator``,
    and lines of programs that say that they are NOT run."""
    reasons = Counter[str]()
    for line in lines:
        if found := re.fullmatch(r"SKIPPED \[(\d+)\] \S+: (.*)", line):
            reasons[found[2]] += int(found[1])
    skipped = [f"{count} skipped: {reason}" for reason, count in reasons.most_common()]
    return skipped + [line for line in lines if re.search(r"\bNOT (run|checked)\b", line)]


def machine() -> str:
    """The processor and the number of its cores that can be used, the system, and Python's version."""
    described = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = re.search(r"model name\s*: (.*)", described)
    cores = len(os.sched_getaffinity(0))
    processor = name[1] if name else platform.machine()
    return f"{cores} cores of {processor}, {platform.platform()}, Python {platform.python_version()}"


def now() -> str:
    """The date and time in UTC, to the minute."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")


def git(*arguments: str, folder: Path | None = None) -> str:
    """The output of a git command, in the repository if no other folder is given."""
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=folder or ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def held(results: dict[str, Result], commit: str) -> dict[str, Result]:
    """The results that are those of a commit, too, and what was not run."""
    inputs = {check.name: check.inputs for check in CHECKS}
    return {
        name: result
        for name, result in results.items()
        if result.commit in (commit, "")
        or (result.outcome == "passed" and changed(result.commit, commit, inputs[name]) == [])
    }


def changed(earlier: str, later: str, inputs: tuple[str, ...]) -> list[str] | None:
    """The files that differ between two commits in the paths of `inputs`. None if the earlier is unknown."""
    command = ["git", "diff", "--name-only", earlier, later, "--", *inputs]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
    )
    return None if done.returncode else done.stdout.splitlines()


def tests_to_repeat(earlier: Result | None, checkout: Path, check: Check) -> list[str]:
    """The files of tests that failed in an earlier run, or have changed since. Empty if anything else has
    changed, if other tests import one of them, or if not all that failed are known."""
    if earlier is None or not earlier.commit or "TESTS" not in check.command:
        return []
    files = changed(earlier.commit, git("rev-parse", "HEAD", folder=checkout), check.inputs)
    if files is None or not all(re.fullmatch(r"(.*/)?tests/(.*/)?test_\w+\.py", file) for file in files):
        return []
    imports = "|".join(rf"^from (.*\.)?{Path(file).stem} import" for file in files)
    search = ["git", "grep", "--quiet", "-E", imports, "--", "*.py"]
    if files and subprocess.run(search, cwd=checkout, check=False).returncode == 0:
        return []
    failed = re.findall(r"^FAILED (\S+?\.py)::", earlier.text, re.MULTILINE)
    summary = summary_of(earlier.text.splitlines())
    if earlier.outcome == "failed" and (
        not summary.startswith(f"{len(failed)} failed,") or "error" in summary
    ):
        return []
    return [file for file in sorted({*files, *failed}) if (checkout / file).exists()]


def shortened(line: str) -> str:
    """A line of a result, with the number of files of tests in place of three names or more."""
    return re.sub(r"(\S+/test_\w+\.py ?){3,}(?=:)", lambda found: f"{len(found[0].split())} files", line)


def page(commit: str, results: dict[str, Result]) -> str:
    """The results as Markdown."""
    machines = sorted({result.machine for result in results.values() if result.machine})
    lines = [
        f"# Checks of commit {commit}",
        "",
        f"{git('show', '-s', '--format=%cd: %s', '--date=short', commit)}. A result of an earlier commit",
        "holds for this one: none of the code that the check depends on has changed since. Machines:",
        "",
        *(f"{number}. {name}" for number, name in enumerate(machines, 1)),
        "",
        "| check | ended (UTC) | outcome | minutes | commit | machine | |",
        "|---|---|---|---|---|---|---|",
    ]
    for check in CHECKS:
        result = results.get(check.name, Result("not run", 0.0, "", "left out so far"))
        text = shortened(result.text.splitlines()[0]) if result.text else ""
        minutes = f"{result.seconds / 60:.0f}" if result.seconds else ""
        number = str(machines.index(result.machine) + 1) if result.machine else ""
        cells = (
            check.name,
            result.date,
            result.outcome,
            minutes,
            result.commit,
            number,
            text,
        )
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    lines += ["", "## Commands", "", "```bash"]
    for check in CHECKS:
        lines += [f"# {check.name}", check.command]
    lines += ["```"]
    for name, result in results.items():
        line, *details = result.text.splitlines() or [""]
        if line != shortened(line):
            details.insert(0, line)
        if details:
            lines += ["", f"## {name}", "", "```text", *details, "```"]
    return "\n".join(lines) + "\n"


def save(record: Path, commit: str, results: dict[str, Result]) -> None:
    """Writes the record and, beside it, the page of what holds for the commit."""
    content = {"results": {name: asdict(result) for name, result in results.items()}}
    record.with_suffix(".new").write_text(json.dumps(content, indent=1) + "\n")
    record.with_suffix(".new").replace(record)
    record.with_suffix(".md").write_text(page(commit, held(results, commit)))


def main() -> int:
    """Runs the checks that have not passed yet; exits with 1 if one has failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--only", nargs="+", metavar="CHECK", choices=[check.name for check in CHECKS])
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "release-check", help="for checkouts")
    parser.add_argument("--record", type=Path, default=ROOT / "docs" / "release-check.json")
    parser.add_argument(
        "--list", action="store_true", help="list the checks, and what this machine lacks for them"
    )
    arguments = parser.parse_args()
    if arguments.list:
        for check in CHECKS:
            missing = missing_programs(check)
            print(
                f"{check.name:28}{check.command}" + (f"    (lacks {', '.join(missing)})" if missing else "")
            )
        return 0
    commit = git("rev-parse", "--short=12", arguments.commit)
    folder = arguments.folder.resolve() / commit
    checkout = folder / "checkout"
    if not checkout.exists():
        folder.mkdir(parents=True, exist_ok=True)
        git("clone", "--quiet", "--no-checkout", str(ROOT), str(checkout))
        git("checkout", "--quiet", "--detach", commit, folder=checkout)
    record = json.loads(arguments.record.read_text())["results"] if arguments.record.exists() else {}
    names = [check.name for check in CHECKS]
    results = {name: Result(**fields) for name, fields in record.items() if name in names}
    save(arguments.record, commit, results)
    for check in CHECKS:
        if arguments.only and check.name not in arguments.only:
            continue
        earlier = results.get(check.name)
        if earlier and earlier.outcome == "passed" and check.name in held(results, commit):
            continue
        print(f"{now()}  {check.name}: {check.command}", flush=True)
        tests = tests_to_repeat(earlier, checkout, check)
        results[check.name] = run(check, checkout, folder / f"{check.name}.log", earlier, tests)
        print(f"{now()}  {check.name}: {results[check.name].outcome}", flush=True)
        save(arguments.record, commit, results)
    return int(any(result.outcome == "failed" for result in held(results, commit).values()))


if __name__ == "__main__":
    sys.exit(main())
