"""The demo's chart: samples of both loaders, their difference, and the throughput of each loader."""

from pathlib import Path

import matplotlib as mpl
import torch

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.gridspec import GridSpec

MEAN = torch.tensor((0.485, 0.456, 0.406))[:, None, None]
STD = torch.tensor((0.229, 0.224, 0.225))[:, None, None]
COLOURS = ("#adb5bd", "#0b7285")


def draw(pairs: list[tuple[torch.Tensor, torch.Tensor]], results: list, path: Path) -> None:
    """`pairs`: (Headrace's sample, torchvision's), normalised float32, [3, height, width]."""
    figure = plt.figure(figsize=(13, 8), layout="constrained")
    grid = GridSpec(5, len(pairs), figure=figure, height_ratios=(1, 1, 1, 0.1, 1.6))
    for column, (ours, theirs) in enumerate(pairs):
        difference = (ours - theirs).abs()
        for row, (name, image) in enumerate(
            [("Headrace", pixels(ours)), ("torchvision", pixels(theirs)), ("difference", difference.amax(0))]
        ):
            panel = figure.add_subplot(grid[row, column])
            panel.imshow(image, cmap="magma", vmin=0, vmax=1)
            panel.set(xticks=[], yticks=[])
            if column == 0:
                panel.set_ylabel(name, fontsize=12)
            if name == "difference":
                panel.set_xlabel(
                    f"largest: {difference.max():.0f}" if not difference.any() else f"{difference.max():.4f}"
                )
    middle = len(pairs) // 2
    bars(figure.add_subplot(grid[4, :middle]), "Loading only", [result.best for result in results], results)
    bars(
        figure.add_subplot(grid[4, middle:]),
        "Training a small network",
        [result.training_rate for result in results],
        results,
    )
    figure.suptitle("The same images, the same random parameters, the same pixels", fontsize=14)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def pixels(image: torch.Tensor) -> torch.Tensor:
    """Height × width × 3, in 0–1."""
    return (image * STD + MEAN).clamp(0, 1).permute(1, 2, 0)


def bars(panel: plt.Axes, title: str, values: list[float], results: list) -> None:
    panel.barh([result.name for result in results], values, color=COLOURS)
    for position, value in enumerate(values):
        panel.text(value, position, f" {value:,.0f}", va="center")
    panel.set_title(f"{title}: images per second ({values[-1] / values[0]:.2f}×)")
    panel.set_xlim(0, 1.15 * max(values))
    panel.spines[["top", "right"]].set_visible(False)
