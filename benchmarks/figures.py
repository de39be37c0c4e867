"""Draws the tables and charts of the README and of docs/ from the newest records in benchmarks/results.

    python benchmarks/figures.py

A page has `<!-- table: benchmarks/figures.py NAME -->` where a table goes, and `<!-- end of table -->` after
it. What has no record is not shown. `python benchmarks/measure.py` makes the records.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import report
from machine import RESULTS, ROOT, newest
from rows import BARE, RESTART

PAGES = ("README.md", "docs/benchmarks.md", "docs/packs.md", "docs/remote.md", "docs/run.md")
BLOCK = re.compile(
    r"(?P<start><!-- table: benchmarks/figures\.py (?P<name>[\w-]+) -->\n)"
    r".*?(?P<end><!-- end of table -->)",
    re.DOTALL,
)
# What a peer does otherwise than torchvision with Pillow.
NOTES = {
    "torch_io": " (other pixels than Pillow's)",
    "turboloader_tar": " (no antialiasing)",
    "ffcv_jpg": " (re-encoded)",
    "ffcv_raw": " (no decoding, {size:.1f} times the disk space)",
}
LABELS = {
    "headrace_folder": "**Headrace**, unchanged folder",
    "headrace_entries": "**Headrace**, with entry points",
    "headrace_pack": "**Headrace**, pack",
}
NOT_MEASURED = "*Not measured on this version yet (`python benchmarks/measure.py`).*"


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def conditions(record: dict[str, Any], *more: str) -> str:
    """The images, the machine, date and commit of a record, as a sentence; early ones have only a date."""
    if "machine" not in record:
        return f"[{record['file'][:10]}](%s{record['file']})."
    here, images = record["machine"], record.get("images") or record.get("pictures")
    parts = list(more)
    if images:
        size = f"{images['mean_bytes'] / 1000:.0f} kB"
        parts.insert(0, f"{images['count']:,} JPEGs of {size} in the page cache")
    parts.append(f"{here['cores_usable']} cores of an {here['cpu'].removesuffix(' Processor')}")
    link = f"[{here['date'][:10]}, commit {here['commit'][:10]}](%s{record['file']})"
    return "; ".join([*parts, link]) + "."


def loaders() -> str:
    """Images per second of Headrace and its peers."""
    record = newest("loaders")
    base = report.rate(record, "torch_pil", "float32")
    bytes_read = {row["row"]["peer"]: row["bytes"] for row in record["rows"] if "bytes" in row}
    rows: dict[str, list[str]] = {}
    for each in record["rows"]:
        row = each["row"]
        if row["threads"] != 2 or row["peer"] in (BARE, RESTART) or "median" not in each:
            continue
        note = NOTES.get(row["peer"], "").format(size=bytes_read[row["peer"]] / bytes_read["torch_pil"])
        cells = rows.setdefault(row["peer"], [LABELS.get(row["peer"], row["label"] + note), "", ""])
        rate = f"{each['median']:,.0f}"
        if row["peer"] in LABELS:
            times = f" ({each['median'] / base:.1f} × torch)" if row["dtype"] == "float32" and base else ""
            rate = f"**{rate}**{times}"
        cells[("float32", "uint8").index(row["dtype"]) + 1] = rate
    made = f"medians of {record['repetitions']} processes of {record['epochs']} passes"
    about = f"Images per second. {conditions(record, '2 threads or workers each', made)}"
    return about + "\n\n" + table(["", "float32, normalized", "uint8"], [*rows.values()])


def inner() -> str:
    """The share of its native function that the loader reaches, and the gain of a second thread."""
    return "\n".join(f"- {line}" for line in report.inner_figures(newest("loaders")))


def measured_pipelines() -> dict[str, tuple[list[float], dict[str, list[float]]]]:
    """By pipeline the ratios to torch's DataLoader, one per process, from low to high, and the rates."""
    found = newest("pipelines")["pipelines"]
    return {
        name: (sorted(ours / theirs for ours, theirs in zip(*both, strict=True)), rates)
        for name, rates in found.items()
        if rates.get("torch")
        for both in [(rates["headrace"], rates["torch"])]
    }


def titled(name: str) -> str:
    """The name of a pipeline apart from the one that it follows in the benchmark."""
    return name.replace("the same", "RandomResizedCrop, flip")


def speedup() -> str:
    """The geometric mean over all pipelines, as a sentence."""
    ratios = [statistics.median(each) for each, _ in measured_pipelines().values()]
    mean = statistics.geometric_mean(ratios)
    return (
        f"{len(ratios)} pipelines of public training code, two workers each: {min(ratios):.2f} to"
        f" {max(ratios):.0f} times torch's DataLoader, {mean:.1f} times in the geometric mean."
    )


def pipelines() -> str:
    """All pipelines, from high to low."""
    record = newest("pipelines")
    rows = [
        [
            titled(name),
            *(f"{statistics.median(rates[loader]):,.0f}" for loader in ("torch", "headrace")),
            f"{statistics.median(ratios):.2f}",
            f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        ]
        for name, (ratios, rates) in measured_pipelines().items()
    ]
    rows.sort(key=lambda row: -float(row[3]))
    skipped = [
        f"{name} ({each['skipped']})" for name, each in record["pipelines"].items() if "skipped" in each
    ]
    left_out = f"\n\nNot measured: {'; '.join(skipped)}." if skipped else ""
    about = f"Images per second. {conditions(record, '2 workers each')}"
    return f"{about}\n\n{table(['pipeline', 'torch', 'Headrace', 'times', 'range'], rows)}{left_out}"


def peers() -> str:
    """Pipelines beside DALI and albumentations with augmentations of their own."""
    record = newest("pipelines-peers")
    rows = []
    for name, rates in record["pipelines"].items():
        median = {key: statistics.median(rates[key]) for key in (*ORDER, "headrace") if rates.get(key)}
        shown = [f"{median[key]:,.0f}" if key in median else "–" for key in (*ORDER, "headrace")]
        times = [f"{median['headrace'] / median[key]:.1f}" if key in median else "–" for key in ORDER[1:]]
        rows.append([name, *shown, *times])
    headings = ["pipeline", "torch", "DALI", "albumentations", "Headrace", "to DALI", "to albumentations"]
    return f"Images per second. {conditions(record, '2 workers each')}\n\n{table(headings, rows)}"


ORDER = ("torch", "dali", "albumentations")


def floor() -> str:
    """Loads with nothing native; rows that have something native, and calls, are left out of the means."""
    from floor_rows import ROWS

    record = newest("floor")
    counted = {row.name for row in ROWS if not row.native}
    rows, means = [], {"later_epoch": [], "first_epoch": [], "first_batch": []}
    for name, found in record["rows"].items():
        if "skipped" in found:
            continue
        cells = [name]
        for figure, values in means.items():
            pairs = zip(found["headrace"].get(figure, ()), found["torch"].get(figure, ()), strict=True)
            ratios = [theirs / ours for ours, theirs in pairs]
            cells.append(f"{statistics.median(ratios):.2f}" if ratios else "")
            values += [statistics.median(ratios)] if ratios and name in counted else []
        rows.append(cells)
    rows.append(["geometric mean", *(f"{statistics.geometric_mean(each):.2f}" for each in means.values())])
    headings = ["load", "later epochs", "first epoch", "first batch"]
    return f"Times torch's DataLoader. {conditions(record)}\n\n{table(headings, rows)}"


def decoders() -> str:
    """Images per second of decoders, in memory and in torch's DataLoader."""
    record = newest("decoders")
    columns = list(record["rates"])
    names = sorted(record["rates"][columns[0]], key=lambda name: -_median(record, columns[0], name))
    rows = [[name, *(f"{_median(record, column, name):,.0f}" for column in columns)] for name in names]
    about = f"Images per second. {record['files']:,} JPEGs; {conditions(record)}"
    return f"{about}\n\n{table(['decoder', *columns], rows)}"


def _median(record: dict[str, Any], column: str, name: str) -> float:
    return float(statistics.median(record["rates"][column][name]))


def augmentations() -> str:
    """One augmentation each in a loader, in the manner of albumentations' published table."""
    record = newest("augmentations")
    columns = list(itertools.product(("albumentations", "torchvision", "Pillow"), ("memory", "files")))
    rows = []
    for name, rates in record["rows"].items():
        cells = [
            "; ".join(f"{rates[f'{library}, {source}, {loader}']:,.0f}" for loader in ("torch", "headrace"))
            for library, source in columns
        ]
        rows.append([name, *cells])
    headings = ["augmentation", *(f"{library}, {source}" for library, source in columns)]
    workers = f"{record['workers']} workers, batches of 256"
    return f"Images per second, in torch's loader; in Headrace's. {conditions(record, workers)}\n\n" + table(
        headings, rows
    )


def commands() -> str:
    """Seconds and memory of commands."""
    record = newest("commands")
    rows = []
    for name, runs in record["runs"].items():
        seconds, memory = (statistics.median(run[key] for run in runs) for key in ("seconds", "bytes"))
        rows.append([f"`{name}`", f"{seconds:.2g}", f"{memory / 1e6:,.0f}"])
    return f"{conditions(record)}\n\n{table(['command', 'seconds', 'MB'], rows)}"


def gpu() -> str:
    """Training on a GPU, and what loaders supply on some of its machine's cores."""
    record = newest("gpu")
    parts = {name: part.get("rows", []) for name, part in record["parts"].items()}
    trained = [
        [
            row["loader"],
            *(row[name] for name in ("model", "precision")),
            f"{row['images_per_second']:,.0f}",
            f"{row['GPU_busy']:.1%}",
        ]
        for row in parts["training"]
    ]
    supplied = [
        [row["loader"], str(row["cores"]), f"{row['images_per_second']:,.0f}"]
        for row in [*parts["cores"], *parts["supply"]]
    ]
    tables = [
        table(["loader", "model", "precision", "images/s", "GPU busy"], trained),
        table(["loader alone", "cores", "images/s"], supplied),
    ]
    about = f"{record['device']}, torch {record['torch']}"
    return "\n\n".join([conditions(record, about), *tables])


def gpu_share() -> str:
    """How busy a GPU is with each loader, in a sentence."""
    record = newest("gpu")
    rows = [row for row in record["parts"]["training"]["rows"] if row["precision"] == "bf16"]
    torchs, folder, _ = (row for row in rows if row["model"] == "resnet50")
    cores = record["machine"]["cores_usable"]
    return (
        f"On an {record['device']} with {cores} cores, a ResNet-50 in bf16 trained on"
        f" {folder['images_per_second']:,.0f} images/s from a folder with Headrace, and the GPU was busy for"
        f" {folder['GPU_busy']:.1%} of the time; with torch's loader and {cores} workers on"
        f" {torchs['images_per_second']:,.0f} images/s, for {torchs['GPU_busy']:.0%}"
        " ([a short run, and what bounds it](docs/benchmarks.md#on-a-gpu))."
    )


def compare() -> str:
    """The answer of `headrace run --compare`."""
    lines = newest("commands").get("compare", [])
    return "\n".join(["```console", "$ headrace run --compare 10 train.py", *filter(None, lines), "```"])


def overlap() -> str:
    """Seconds of an epoch whose samples wait."""
    record = newest("overlap")
    rows = [[row["name"], f"{statistics.median(row['seconds']):.2f}"] for row in record["rows"]]
    return f"{conditions(record)}\n\n{table(['loader', 'seconds'], rows)}"


def worker_start() -> str:
    """Seconds until spawned workers of a large dataset have given their first batch."""
    record = newest("worker-start")
    rows = []
    for loader, runs in record["runs"].items():
        columns = [list(each) for each in zip(*runs, strict=True)]
        rows.append([loader, *(f"{statistics.median(each):.1f}" for each in columns)])
    about = f"{record['size']:,} samples; {record['workers']} workers by {record['method']}"
    headings = ["loader", "seconds to the first batch", "to a batch of each worker"]
    return f"{conditions(record, about)}\n\n{table(headings, rows)}"


def tuning() -> str:
    """Settings that are left open, beside the best of a sweep."""
    record = newest("tuning")
    rows = []
    for name, found in record["loads"].items():
        shares = [f"{found['share'][kind]:.2f} ({found['best'][kind]})" for kind in ("headrace", "torch")]
        advised = f"{found['advised_share']:.2f} ({found['advised']})"
        rows.append([name, f"{found['medians']['auto']:,.0f}", *shares, advised])
    headings = [
        "load",
        "nothing given, samples/s",
        "to Headrace's best",
        "to torch's best",
        "as `explain()` advises",
    ]
    return f"{conditions(record)}\n\n{table(headings, rows)}"


def packing() -> str:
    """Images packed per second, their CPU time, and the size of the pack."""
    record = newest("packing")
    rows = []
    for row in record["rows"]:
        each = {key: statistics.median(run[key] for run in row["runs"]) for key in row["runs"][0]}
        name = "`--optimize`" if row["optimize"] else "unchanged"
        cells = f"{each['per_second']:,.0f}", f"{each['cpu_ms_per_image']:.2f}", f"{each['size'] - 1:+.1%}"
        rows.append([name, str(row["workers"]), *cells])
    headings = ["files", "workers", "images/s", "ms of CPU time an image", "size to the files'"]
    return f"{conditions(record)}\n\n{table(headings, rows)}"


def remote() -> str:
    """Images per second from an object store."""
    record = newest("remote")
    found = record["table"]
    names = {
        "local": "the pack on local disk",
        "remote": "**Headrace**, `s3://`",
        "webdataset": "WebDataset (no cache)",
        "litdata": "LitData",
        "mosaic": "MosaicML Streaming",
    }
    rows = []
    for key, label in names.items():
        if "warm" in found.get(key, {}):  # or else its error
            share = f" ({found['cold share of the bound']:.0%} of the proxy)" if key == "remote" else ""
            cold = "" if key == "local" else f"{found[key]['cold']:,.0f}{share}"
            rows.append([label, cold, f"{found[key]['warm']:,.0f}"])
    return f"Images per second. {conditions(record)}\n\n{table(['', 'cold', 'warm'], rows)}"


def scripts() -> str:
    """Loaders of public training scripts."""
    record = newest("scripts")
    rows = [
        [f"`{name}.py`", loader, plan, images.partition(" (")[0] if plan == "python" else "", times]
        for name, loader, plan, images, times in record["rows"]
    ]
    headings = ["script", "loader", "plan", "images", "times torch"]
    return f"{conditions(record)}\n\n{table(headings, rows)}"


def learning() -> str:
    """Accuracies of training with both loaders."""
    rows = []
    for name in ("digits", "stamps", "digits-randaugment", "stamps-randaugment"):
        record = newest(f"learning-{name}")
        for loader in ("torch", "headrace"):
            runs = [run for run in record["runs"] if run["loader"] == loader]
            top1 = [100 * run["top1"] for run in runs]
            seconds = ", ".join(f"{run['cpu_seconds']:.0f}" for run in runs)
            each = ", ".join(f"{value:.1f}" for value in top1)
            mean = f"{statistics.mean(top1):.1f} %"
            apart = f"{record['standard_errors_apart']:.1f}" if loader == "headrace" else ""
            rows.append([name.replace("-randaugment", ", RandAugment"), loader, each, mean, apart, seconds])
    headings = ["set", "loader", "top-1 by seed, %", "mean", "standard errors apart", "CPU time, s"]
    return table(headings, rows)


# By name in the pages: the table, and the record that it is drawn from.
TABLES: dict[str, tuple[Callable[[], str], str]] = {
    "loaders": (loaders, "loaders"),
    "inner": (inner, "loaders"),
    "speedup": (speedup, "pipelines"),
    "pipelines": (pipelines, "pipelines"),
    "pipelines-peers": (peers, "pipelines-peers"),
    "floor": (floor, "floor"),
    "decoders": (decoders, "decoders"),
    "augmentations": (augmentations, "augmentations"),
    "commands": (commands, "commands"),
    "compare": (compare, "loaders"),
    "gpu": (gpu, "gpu"),
    "gpu-share": (gpu_share, "gpu"),
    "overlap": (overlap, "overlap"),
    "worker-start": (worker_start, "worker-start"),
    "tuning": (tuning, "tuning"),
    "packing": (packing, "packing"),
    "remote": (remote, "remote"),
    "scripts": (scripts, "scripts"),
    "learning": (learning, "learning-digits"),
}


def filled(page: str) -> str:
    """The text of a page with its tables drawn from the newest records."""
    path = ROOT / page
    results = "benchmarks/results/" if path.parent == ROOT else "../benchmarks/results/"

    def block(match: re.Match[str]) -> str:
        draw, record = TABLES[match["name"]]
        text = draw().replace("](%s", f"]({results}") if newest(record) else NOT_MEASURED
        return f"{match['start']}{text}\n{match['end']}"

    return BLOCK.sub(block, path.read_text(encoding="utf-8"))


def charts() -> None:
    """Draws the bars of pipelines and of loaders; each file names its record."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    record, found = newest("pipelines"), measured_pipelines()
    names = sorted(found, key=lambda name: statistics.median(found[name][0]))
    labels = [titled(name) for name in names]
    medians = [statistics.median(found[name][0]) for name in names]
    spread = [
        [median - found[name][0][0] for name, median in zip(names, medians, strict=True)],
        [found[name][0][-1] - median for name, median in zip(names, medians, strict=True)],
    ]
    figure, panel = plt.subplots(figsize=(9, 1.0 + 0.2 * len(names)), layout="constrained")
    panel.barh(labels, medians, xerr=spread, color="#0b7285", ecolor="#495057", capsize=2)
    for position, (name, median) in enumerate(zip(names, medians, strict=True)):
        panel.text(found[name][0][-1], position, f"  {median:.1f}×", va="center", fontsize=8)
    panel.margins(y=0.01)
    panel.axvline(1, color="#e8590c", linewidth=1)
    panel.set_xlabel(f"times torch's DataLoader, {record['workers']} workers each")
    panel.spines[["top", "right"]].set_visible(False)
    here, images = record["machine"], record["images"]
    size = f"{images['mean_bytes'] / 1000:.0f} kB, {images['mean_width']:.0f}×{images['mean_height']:.0f}"
    run_of = f"{here['date'][:10]}, commit {here['commit'][:10]}"
    figure.supxlabel(f"{here['cpu']}, {here['cores_usable']} cores; JPEGs of {size}; {run_of}", fontsize=7)
    figure.savefig(RESULTS / "pipelines.png", dpi=130, metadata={"Source": record["file"]})
    plt.close(figure)
    report.plot(newest("loaders"), RESULTS / "loaders.png")


def main() -> None:
    """Writes the pages and the charts."""
    for page in PAGES:
        Path(ROOT, page).write_text(filled(page), encoding="utf-8")
    charts()


if __name__ == "__main__":
    main()
