"""Draws what peers.py recorded: table and plot. `python benchmarks/report.py FILE.json` draws it again."""

import json
import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rows import BARE, ENTRIES, HEADRACE, PACK, RESTART

OURS = {HEADRACE, ENTRIES, PACK, RESTART, BARE}


def median(values: list[float]) -> float:
    return float(statistics.median(values))


def name_of(record: dict) -> str:
    return f"{record['row']['label']} ({record['row']['dtype']})"


def rate(result: dict, peer: str, dtype: str, threads: int = 2) -> float | None:
    """Median images per second of a row, or None where it was not measured."""
    for record in result["rows"]:
        row = record["row"]
        if (row["peer"], row["dtype"], row["threads"]) == (peer, dtype, threads):
            return record.get("median")
    return None


def ratio(ours: float | None, theirs: float | None) -> str:
    return "" if ours is None or theirs is None else f"{ours / theirs:.2f}×"


def table(result: dict) -> Table:
    """Ratios compare equal element types only."""
    drawn = Table(title="Images per second, RandomResizedCrop(224) + flip", title_justify="left")
    ratios = [f"{name} ÷ it" for name in ("Headrace", "entry points", "pack", "restarts")]
    drawn.add_column("")
    for heading in ("type", "threads", "median", "least–most", *ratios):
        drawn.add_column(heading, justify="right")
    drawn.add_column("what it does to an image")
    for record in result["rows"]:
        row = record["row"]
        if "median" not in record:
            continue
        cells = [row["label"], row["dtype"], str(row["threads"]), f"{record['median']:,.0f}"]
        cells.append(f"{record['least']:,.0f}–{record['most']:,.0f}")
        for ours in (HEADRACE, ENTRIES, PACK, RESTART):
            cells.append(
                "" if row["peer"] in OURS else ratio(rate(result, ours, row["dtype"]), record["median"])
            )
        drawn.add_row(*cells, record["about"], style="bold" if row["peer"] in OURS else None)
    return drawn


def inner_figures(result: dict) -> list[str]:
    """Shows how much the loader adds to the native batch function, and what a second thread brings."""
    lines = []
    for dtype in ("float32", "uint8"):
        loader, bare = rate(result, HEADRACE, dtype), rate(result, BARE, dtype)
        if loader and bare:
            lines.append(
                f"{dtype}: the loader reaches {100 * loader / bare:.1f} % of its native batch function"
            )
    one, two = rate(result, HEADRACE, "uint8", threads=1), rate(result, HEADRACE, "uint8")
    if one and two:
        lines.append(f"uint8: two threads give {two / one:.2f}× one")
    return lines


def show(result: dict) -> None:
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table(result))
    for line in inner_figures(result):
        console.print(line)
    for entry in result["missing"]:
        console.print(
            f"missing: {entry['row']['label']} ({entry['row']['dtype']}): {entry['reason']}", markup=False
        )
    for doubt in result["doubts"]:
        console.print(f"doubt: {doubt}", style="red", markup=False)
    console.print(caption(result), markup=False)


def caption(result: dict) -> str:
    here, pictures = result["machine"], result["pictures"]
    commit = here["commit"][:10] + (" with uncommitted changes" if here["uncommitted_changes"] else "")
    limit = result.get("memory_limit")
    within = f"each process within {limit / 1e9:.1f} GB, page cache included; " if limit else ""
    return (
        f"{within}{here['cpu']}, {here['cores_usable']} cores usable, {here['system']}, "
        f"kernel {here['kernel']}; "
        f"{pictures['count']} JPEGs of {pictures['mean_bytes'] / 1000:.0f} kB around "
        f"{pictures['mean_width']:.0f}×{pictures['mean_height']:.0f}; "
        f"{result['repetitions']} processes × {result['epochs']} passes; "
        f"{here['date'][:10]}, commit {commit}"
    )


def plot(result: dict, path: Path) -> None:
    """Bars of medians, whiskers from least to most, a panel for each element type."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(13, 5.5), sharex=True, layout="constrained")
    for panel, dtype in zip(panels, ("float32", "uint8"), strict=True):
        records = [
            record
            for record in result["rows"]
            if "median" in record and record["row"]["dtype"] == dtype and record["row"]["threads"] == 2
        ]
        records.sort(key=lambda record: record["median"])
        medians = [record["median"] for record in records]
        spread = [
            [record["median"] - record["least"] for record in records],
            [record["most"] - record["median"] for record in records],
        ]
        colours = ["#0b7285" if record["row"]["peer"] in OURS else "#adb5bd" for record in records]
        labels = [record["row"]["label"] for record in records]
        panel.barh(labels, medians, xerr=spread, color=colours, ecolor="#495057", capsize=2)
        for position, record in enumerate(records):
            panel.text(record["most"], position, f"  {record['median']:,.0f}", va="center", fontsize=8)
        panel.set_title(dtype)
        panel.set_xlabel("images per second")
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle("RandomResizedCrop(224) + flip, 2 threads, files in the page cache")
    figure.supxlabel(caption(result), fontsize=7)
    figure.savefig(path, dpi=130, metadata={"Source": result.get("file", "")})
    plt.close(figure)


if __name__ == "__main__":
    recorded = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    show(recorded)
    plot(recorded, Path(sys.argv[1]).with_suffix(".png"))
