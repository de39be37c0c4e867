"""Images per second of pipelines that people train with, alongside torch's DataLoader with the same workers.

Both loaders are given the same dataset, so the same transforms. Each measurement is a fresh process; rounds
go through all rows, so that a slow minute of the machine affects all of them alike. The first pass
of a process warms up; the median of the others counts. Rows whose package is missing are named and skipped.
With --peers (`make bench-peers` fills that folder) DALI and albumentations are measured, too, where they have
the operations of a row.

    python benchmarks/pipelines.py --data data                     (about 40 minutes)
    python benchmarks/pipelines.py --rows 'crop, RandAugment' --repetitions 1
    python benchmarks/pipelines.py --draw benchmarks/results/FILE.json        (FILE.png: the ratios)
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import headrace
import machine
import pictures
from pipeline_rows import PEERS, ROWS, Row

HERE = Path(__file__).resolve().parent
BATCH_SIZE = 64
SECONDS_PER_RUN = 900
LOADERS = {"torch": torch.utils.data.DataLoader, "headrace": headrace.DataLoader}
BY_NAME = {row.name: row for row in ROWS}


def rate(folder: Path, row: Row, loader: str, workers: int, epochs: int) -> dict[str, Any]:
    """Images per second of one loader in this process, and its plan."""
    torch.set_num_threads(1)
    dataset = row.make(folder)
    shuffle = not isinstance(dataset, torch.utils.data.IterableDataset)
    options: dict[str, Any] = {
        "num_workers": workers,
        "persistent_workers": workers > 0,
        "collate_fn": row.collate,
    }
    if row.batches is None:
        options |= {"batch_size": BATCH_SIZE, "shuffle": shuffle}
    else:
        options["batch_sampler"] = row.batches(dataset)
    batches: Any = LOADERS[loader](dataset, **options)
    rates = []
    for _ in range(epochs + 1):
        start = time.perf_counter()
        for _batch in batches:
            pass
        rates.append(len(dataset) / (time.perf_counter() - start))  # type: ignore[arg-type]
    steps = batches.explain() if loader == "headrace" else ""
    return {"rates": rates[1:], "explain": steps}


def run(folder: Path, row: Row, loader: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own; {"error": …} where that fails."""
    command = [sys.executable, __file__, "--one", row.name, loader]
    if loader in PEERS:
        python = arguments.peers / loader / "bin" / "python"
        command = [str(python), str(HERE / f"{loader}_rows.py"), "--row", row.name]
    command += ["--folder", str(folder), "--workers", str(arguments.workers)]
    command += ["--epochs", str(arguments.epochs)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_PER_RUN, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {SECONDS_PER_RUN} s"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"error": lines[-1] if lines else f"exit code {done.returncode}"}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def rows_to_measure(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns by row an empty list for each loader, or the reason why the row is skipped."""
    found: dict[str, dict[str, Any]] = {}
    for name in arguments.rows:
        needs = BY_NAME[name].needs
        found[name] = {loader: [] for loader in LOADERS}
        if arguments.peers is not None:
            found[name] |= {peer: [] for peer, rows in PEERS.items() if name in rows}
        if needs is not None and importlib.util.find_spec(needs) is None:
            found[name] = {"skipped": f"{needs} is not installed"}
    return found


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """Returns by row the rates of each loader, one per repetition, or the reason why it was skipped."""
    found = rows_to_measure(arguments)
    console = Console(stderr=True)
    for repetition in range(arguments.repetitions):
        for name, rates in found.items():
            for loader in (*LOADERS, *PEERS):
                if "skipped" in rates or loader not in rates:
                    continue
                console.print(f"{repetition + 1}/{arguments.repetitions} {name}: {loader}")
                result = run(folder, BY_NAME[name], loader, arguments)
                if "error" in result:
                    console.print(f"{loader}: {result['error']}")
                    rates["without" if loader in PEERS else "skipped"] = f"{loader}: {result['error']}"
                    rates.pop(loader, None)
                    continue
                rates[loader].append(statistics.median(result["rates"]))
                if loader == "headrace":
                    rates["explain"] = result["explain"]
    return found


def ratio(rates: dict[str, Any]) -> list[float]:
    """Headrace's rate as a multiple of torch's, one for each repetition, from low to high."""
    pairs = zip(rates["headrace"], rates["torch"], strict=True)
    return sorted(ours / torchs for ours, torchs in pairs)


def compared(rates: dict[str, Any], peer: str) -> tuple[str, str]:
    """The peer's images per second, and Headrace's as a multiple; empty where it wasn't measured."""
    if not rates.get(peer):
        return "", ""
    rate_of_peer = statistics.median(rates[peer])
    return f"{rate_of_peer:,.0f}", f"{statistics.median(rates['headrace']) / rate_of_peer:.2f}"


def show(found: dict[str, dict[str, Any]]) -> None:
    table = Table(title="images per second", title_justify="left")
    peers = [peer for peer in PEERS if any(rates.get(peer) for rates in found.values())]
    headings = ["torch", "headrace", "ratio", "range", "aimed at"]
    table.add_column("pipeline")
    for heading in headings + [text for peer in peers for text in (peer, f"ratio to {peer}")]:
        table.add_column(heading, justify="right")
    ratios = []
    for name, rates in found.items():
        if "skipped" in rates or not rates["torch"]:
            table.add_row(name, "", "", rates.get("skipped", "not run"))
            continue
        each = ratio(rates)
        ratios.append(statistics.median(each))
        torchs, ours = (f"{statistics.median(rates[loader]):,.0f}" for loader in LOADERS)
        target = BY_NAME[name].target
        spread = f"{each[0]:.2f} to {each[-1]:.2f}"
        aim = "≥ 1" if target is None else f"≥ {target:g}"
        beside = [text for peer in peers for text in compared(rates, peer)]
        table.add_row(name, torchs, ours, f"{ratios[-1]:.2f}", spread, aim, *beside)
    console = Console(width=150)
    console.print(table)
    if ratios:
        console.print(
            f"geometric mean of {len(ratios)} pipelines: {statistics.geometric_mean(ratios):.2f}×;"
            f" slower than torch: {sum(each < 1 for each in ratios)}"
        )


def draw(result: dict[str, Any], path: Path) -> None:
    """Bars of the median ratios, from high to low, with the range of the repetitions."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    ratios = {name: ratio(found) for name, found in result["pipelines"].items() if found.get("torch")}
    names = sorted(ratios, key=lambda name: statistics.median(ratios[name]))
    # In the chart, "the same" does not follow what it refers to.
    labels = ["RandomResizedCrop, flip, v2" if name == "the same, v2" else name for name in names]
    medians = [statistics.median(ratios[name]) for name in names]
    spread = [
        [median - ratios[name][0] for name, median in zip(names, medians, strict=True)],
        [ratios[name][-1] - median for name, median in zip(names, medians, strict=True)],
    ]
    figure, panel = plt.subplots(figsize=(9, 1.0 + 0.2 * len(names)), layout="constrained")
    panel.barh(labels, medians, xerr=spread, color="#0b7285", ecolor="#495057", capsize=2)
    for position, (name, median) in enumerate(zip(names, medians, strict=True)):
        panel.text(ratios[name][-1], position, f"  {median:.1f}×", va="center", fontsize=8)
    panel.margins(y=0.01)
    panel.axvline(1, color="#e8590c", linewidth=1)
    panel.set_xlabel(f"times torch's DataLoader, {result['workers']} workers each")
    panel.spines[["top", "right"]].set_visible(False)
    here, images = result["machine"], result["images"]
    size = f"{images['mean_bytes'] / 1000:.0f} kB, {images['mean_width']:.0f}×{images['mean_height']:.0f}"
    run_of = f"{here['date'][:10]}, commit {here['commit'][:10]}"
    figure.supxlabel(f"{here['cpu']}, {here['cores_usable']} cores; JPEGs of {size}; {run_of}", fontsize=7)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="where the images are kept or made")
    parser.add_argument("--count", type=int, default=2000, help="images (2000)")
    parser.add_argument("--workers", type=int, default=2, help="num_workers of both loaders (2)")
    parser.add_argument("--epochs", type=int, default=3, help="timed passes of a process (3)")
    parser.add_argument("--repetitions", type=int, default=3, help="processes for each row and loader (3)")
    parser.add_argument("--rows", nargs="+", choices=BY_NAME, default=list(BY_NAME), metavar="ROW")
    parser.add_argument("--out", type=Path, default=HERE / "work", help="pipelines.json goes here")
    parser.add_argument("--peers", type=Path, help="folder with the peers' environments")
    parser.add_argument("--draw", type=Path, metavar="FILE.json", help="only draw recorded ratios")
    parser.add_argument("--one", nargs=2, metavar=("ROW", "LOADER"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, loader = arguments.one
        print(json.dumps(rate(arguments.folder, BY_NAME[name], loader, arguments.workers, arguments.epochs)))
        return
    if arguments.draw:
        draw(json.loads(arguments.draw.read_text(encoding="utf-8")), arguments.draw.with_suffix(".png"))
        return
    folder = arguments.data / f"pictures-{arguments.count}"
    manifest = pictures.ensure(folder, arguments.count, cache=arguments.data / "cache")
    load = machine.foreign_load()
    found = measure(arguments, folder)
    show(found)
    result = {
        "machine": machine.describe(),
        "foreign_cores_before": round(load, 2),
        "images": manifest,
        "workers": arguments.workers,
        "pipelines": found,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "pipelines.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
