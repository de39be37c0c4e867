"""headrace train: the ImageNet recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Option

from headrace.errors import HeadraceError

# EX_TEMPFAIL of sysexits.h: nothing is wrong, start the same command again.
PREEMPTED = 75


def train(
    data: Annotated[
        Path, typer.Argument(help="A folder with train and val, each of class folders or a pack.")
    ],
    out: Annotated[Path, Option(help="Where checkpoints and logs go.")] = Path("runs/imagenet"),
    arch: Annotated[str, Option(help="A model of torchvision, or timm/NAME.")] = "resnet50",
    epochs: Annotated[int, Option(min=1)] = 90,
    batch_size: Annotated[int, Option(min=1, help="Pictures of one step, over all ranks and parts.")] = 256,
    accumulate: Annotated[int, Option(min=1, help="Parts that a rank's share of a batch is done in.")] = 1,
    optimizer: Annotated[str, Option(help="sgd or adamw.")] = "sgd",
    lr: Annotated[
        float | None, Option(help="Highest. Left out: 0.1 × batch/256 for sgd, 1e-3 × batch/1024 for adamw.")
    ] = None,
    weight_decay: Annotated[float | None, Option(help="Left out: 1e-4 for sgd, 0.05 for adamw.")] = None,
    warmup_epochs: Annotated[float, Option(help="Of a rising learning rate; a cosine follows.")] = 5.0,
    label_smoothing: Annotated[float, Option()] = 0.1,
    ema: Annotated[
        float, Option(help="Decay of an average of the weights, which is evaluated; 0: none.")
    ] = 0.0,
    size: Annotated[int, Option(help="Pixels of a crop.")] = 224,
    val_resize: Annotated[int, Option(help="Shorter side before evaluation's crop.")] = 256,
    start_size: Annotated[int | None, Option(help="Crops begin with this and grow to --size.")] = None,
    precision: Annotated[str, Option(help="fp32, bf16 or fp16.")] = "fp32",
    checkpointing: Annotated[bool, Option(help="Compute activations twice, keep few.")] = False,
    channels_last: Annotated[bool, Option(help="Memory format of model and pictures.")] = False,
    compile: Annotated[bool, Option(help="torch.compile.")] = False,
    workers: Annotated[int | None, Option(help="Of each loader. Left out: the loader decides.")] = None,
    seed: Annotated[int, Option(min=0)] = 0,
    deterministic: Annotated[bool, Option(help="The same bits each time; slower.")] = False,
    device: Annotated[str | None, Option(help="Left out: the accelerator, or the CPU.")] = None,
    resume: Annotated[str, Option(help="auto: from OUT/last.pt if it is there; never; or a file.")] = "never",
    checkpoint_every: Annotated[int, Option(help="Steps between checkpoints; 0: once an epoch.")] = 0,
    log_every: Annotated[int, Option(min=1, help="Steps between lines.")] = 50,
    tensorboard: Annotated[bool, Option(help="Write scalars to --out.")] = False,
    metrics_port: Annotated[
        int | None, Option(min=1, max=65535, help="For Prometheus, at 127.0.0.1; plus a rank's number here.")
    ] = None,
) -> None:
    """Trains an image classifier, as ImageNet's are; several GPUs by torchrun.

    SIGTERM or SIGUSR1 end it after the step at hand, with a checkpoint; --resume auto goes on with the next
    picture, also on another number of GPUs.

    Exit codes: 0 trained; 75 stopped by a signal, start it again with --resume auto; 2 wrong usage; 1 any
    other error.
    """
    options = dict(locals())
    from headrace.recipes import Recipe
    from headrace.recipes import train as run

    try:
        outcome = run(Recipe(**options))
    except HeadraceError as error:
        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2 if isinstance(error, ValueError) else 1) from error
    if outcome.preempted:
        raise typer.Exit(PREEMPTED)
