"""headrace train: the ImageNet recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Option

from headrace.cli.progress import INTERRUPTED
from headrace.errors import HeadraceError

# EX_TEMPFAIL of sysexits.h: nothing is wrong, start the same command again.
PREEMPTED = 75
FAILED, USAGE = 1, 2

MODEL, PICTURES = "Model and optimizer", "Pictures"
MACHINE, RUN = "Speed and memory", "Checkpoints and logs"


def train(
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="A folder with train and val, each of class folders or a pack."),
    ],
    arch: Annotated[
        str, Option(help="A classifier of torchvision, or timm/NAME.", rich_help_panel=MODEL)
    ] = "resnet50",
    epochs: Annotated[int, Option(min=1, help="Passes over train.", rich_help_panel=MODEL)] = 90,
    batch_size: Annotated[
        int,
        Option(min=1, help="Pictures of one optimizer step, on all GPUs together.", rich_help_panel=MODEL),
    ] = 256,
    optimizer: Annotated[str, Option(help="sgd or adamw.", rich_help_panel=MODEL)] = "sgd",
    lr: Annotated[
        float | None,
        Option(
            help="The highest learning rate. Left out: 0.1 × batch/256 for sgd, 1e-3 × batch/1024 for adamw.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    weight_decay: Annotated[
        float | None, Option(help="Left out: 1e-4 for sgd, 0.05 for adamw.", rich_help_panel=MODEL)
    ] = None,
    warmup_epochs: Annotated[
        float | None,
        Option(
            help="In which the learning rate rises; then it falls as a cosine. Left out: 5, or half of the"
            " epochs.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    label_smoothing: Annotated[float, Option(help="0: none.", rich_help_panel=MODEL)] = 0.1,
    ema: Annotated[
        float,
        Option(
            help="Decay per step of an average of the weights, which is then what is evaluated: 0.999"
            " averages over 1,000 steps; 0: none.",
            rich_help_panel=MODEL,
        ),
    ] = 0.0,
    size: Annotated[int, Option(min=1, help="Pixels of a crop's side.", rich_help_panel=PICTURES)] = 224,
    val_resize: Annotated[
        int,
        Option(min=1, help="Pixels of the shorter side before evaluation's crop.", rich_help_panel=PICTURES),
    ] = 256,
    start_size: Annotated[
        int | None,
        Option(
            help="Crops of the first epoch, growing to --size at three quarters of the epochs. Left out: all"
            " are of --size.",
            rich_help_panel=PICTURES,
        ),
    ] = None,
    workers: Annotated[
        int | None, Option(help="Of each loader. Left out: the loader decides.", rich_help_panel=PICTURES)
    ] = None,
    precision: Annotated[
        str, Option(help="fp32, bf16 or fp16: of autocast.", rich_help_panel=MACHINE)
    ] = "fp32",
    accumulate: Annotated[
        int,
        Option(
            min=1,
            help="Parts that each GPU does its share of a batch in: less memory, the same training.",
            rich_help_panel=MACHINE,
        ),
    ] = 1,
    checkpointing: Annotated[
        bool,
        Option(
            "--checkpointing",
            help="Keep few activations, compute the others twice: less memory, a third more time.",
            rich_help_panel=MACHINE,
        ),
    ] = False,
    channels_last: Annotated[
        bool,
        Option(
            "--channels-last",
            help="Memory format of model and pictures: faster on GPUs, with --precision bf16 or fp16.",
            rich_help_panel=MACHINE,
        ),
    ] = False,
    compile: Annotated[
        bool, Option("--compile", help="By torch.compile: a slow first step.", rich_help_panel=MACHINE)
    ] = False,
    deterministic: Annotated[
        bool, Option("--deterministic", help="The same bits each time; slower.", rich_help_panel=MACHINE)
    ] = False,
    device: Annotated[
        str | None, Option(help="Left out: the accelerator, or the CPU.", rich_help_panel=MACHINE)
    ] = None,
    out: Annotated[Path, Option(help="The folder of checkpoints and logs.", rich_help_panel=RUN)] = Path(
        "runs/imagenet"
    ),
    resume: Annotated[
        str,
        Option(
            help="auto: from OUT/last.pt, if it is there; FILE: from that; never: refuse an OUT that has a"
            " run.",
            rich_help_panel=RUN,
        ),
    ] = "never",
    checkpoint_every: Annotated[
        int, Option(min=0, help="Steps, beside one after each epoch; 0: none.", rich_help_panel=RUN)
    ] = 0,
    log_every: Annotated[int, Option(min=1, help="Steps between lines.", rich_help_panel=RUN)] = 50,
    tensorboard: Annotated[
        bool, Option("--tensorboard", help="Write scalars to --out.", rich_help_panel=RUN)
    ] = False,
    metrics_port: Annotated[
        int | None,
        Option(
            min=1,
            max=65535,
            help="For Prometheus, at 127.0.0.1; plus a rank's number here.",
            rich_help_panel=RUN,
        ),
    ] = None,
    seed: Annotated[
        int, Option(min=0, help="Of weights, order and random parameters.", rich_help_panel=RUN)
    ] = 0,
) -> None:
    """Trains an image classifier, as ImageNet's are.

    On one GPU: headrace train DATA --precision bf16 --channels-last

    On eight: torchrun --nproc-per-node=8 -m headrace train DATA --batch-size 2048 …

    Ctrl-C, SIGTERM and SIGUSR1 end it after the step at hand, with a checkpoint. The same command with
    --resume auto goes on with the next picture, also on another number of GPUs.

    Exit codes: 0 trained; 75 stopped by SIGTERM or SIGUSR1, to be started again with --resume auto; 130
    stopped by Ctrl-C; 2 wrong usage, or data that isn't there; 1 any other error.
    """
    options = dict(locals())
    from headrace.recipes import Recipe
    from headrace.recipes import train as run

    try:
        outcome = run(Recipe(**options))
    except (HeadraceError, OSError) as error:
        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        usage = isinstance(error, (ValueError, PermissionError, FileExistsError, NotADirectoryError))
        raise typer.Exit(USAGE if usage else FAILED) from error
    if outcome.stopped_by is not None:
        raise typer.Exit(INTERRUPTED if outcome.stopped_by == "SIGINT" else PREEMPTED)
