"""What `headrace top` draws: a frame as lines of text, for 80 columns and more."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.text import Text

from headrace.cli.frames import Frame, LoaderFrame, ProcessFrame, RemoteFrame

BAR = 20
SPARKS = " ▁▂▃▄▅▆▇█"
# Shares of waited time from which on a loader is called late, and too slow; see docs/stats.md.
LATE, SLOW = 0.05, 0.20
# A step that has waited this long is worth a word of its own.
LONG_SECONDS = 2.0
PROCESSES = 8

# Lines of at most 80 characters.
NOT_PUBLISHED = (
    "Throughput, stall and queue are known of headrace.DataLoader only, once it is",
    "iterated over. For torch's DataLoader: headrace doctor run SCRIPT",
)


def draw(frame: Frame, stalls: Sequence[float | None], width: int, height: int) -> Text:
    """The whole view; what doesn't fit in `height` lines is left out from the end.

    Args:
        stalls: of the loader that waits most, oldest first: shares, None where no step was made.
    """
    lines = [_title(frame), *_machine(frame)]
    if not frame.ranks:
        note = () if frame.silent else NOT_PUBLISHED
        lines += [Text(), *_table(frame.processes), Text(), *map(Text, note)]
    elif len(frame.ranks) > 1:
        lines += [Text(), *_ranks(frame)]
    slowest = frame.slowest
    if slowest is not None:
        if len(frame.ranks) > 1:
            lines += [Text(), Text(f"▶ waits most: process {slowest.pid}", style="bold")]
        # Those that are iterated over first: the others take a line each.
        for loader in sorted(slowest.loaders, key=lambda one: (not one.active, one.number)):
            lines += [Text(), *_loader(loader, list(stalls))] if loader.active else [_idle(loader)]
    lines += [Text(f"process {pid} doesn't answer", style="yellow") for pid in frame.silent]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines[: max(1, height)])


def printable(text: str) -> str:
    """Without what would steer the terminal: commands are other programs' to choose."""
    return "".join(char if char.isprintable() else "?" for char in text)


def bar(share: float, width: int = BAR) -> str:
    """Filled up to `share`, 0 to 1."""
    filled = round(width * min(1.0, max(0.0, share)))
    return "█" * filled + "░" * (width - filled)


def sparkline(shares: Sequence[float | None], width: int = 30) -> str:
    """At most `width` characters, each for the mean of equally many shares; a dot where nothing is known."""
    each = max(1, math.ceil(len(shares) / width))
    groups = [[s for s in shares[i : i + each] if s is not None] for i in range(0, len(shares), each)]
    return "".join(SPARKS[min(8, round(8 * sum(one) / len(one)))] if one else "·" for one in groups)


def duration(seconds: float) -> str:
    """As 1:02:33, or 0:07."""
    whole = int(seconds)
    minutes = f"{whole // 60 % 60:02}:{whole % 60:02}"
    return f"{whole // 3600}:{minutes}" if whole >= 3600 else minutes.removeprefix("0")


def size(nbytes: float) -> str:
    """As 12.3 MB; three digits or so."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if nbytes >= scale:
            return f"{nbytes / scale:,.1f} {unit}"
    return f"{nbytes / 1e3:,.0f} kB"


def share_style(share: float) -> str:
    """Of a share of waited time."""
    return "red" if share > SLOW else "yellow" if share >= LATE else "green"


def _command(command: str) -> str:
    """Without the folder of the program."""
    program, _, arguments = printable(command).partition(" ")
    return f"{program.rpartition('/')[2]} {arguments}"


def _title(frame: Frame) -> Text:
    root = frame.processes[0].look
    title = Text("headrace top", style="bold")
    title.append(f"  pid {root.pid}, up {duration(frame.uptime)}  ", style="not bold")
    return title.append(_command(root.command), style="not bold dim")


def _machine(frame: Frame) -> list[Text]:
    cpu = sum(one.cpu for one in frame.processes)
    memory = sum(one.look.memory for one in frame.processes)
    lines = [Text(f"cpu       {bar(cpu / frame.cores)} {cpu:.2f} of {frame.cores:g} cores")]
    workers = len(frame.processes) - 1
    if workers:
        states = [one.look.state for one in frame.processes[1:]]
        waiting = states.count("disk-sleep")
        lines[0].append(f", main {frame.processes[0].cpu:.2f}; {workers} more processes")
        lines[0].append(f", {waiting} wait for the disk" if waiting else "")
    reads = [one.read for one in frame.processes if one.read is not None]
    disk = f"{size(sum(reads))}/s read" if reads else "not known"
    lines.append(Text(f"memory    {size(memory)} resident; disk: {disk}"))
    for gpu in frame.gpus:
        lines.append(
            Text(
                f"gpu {gpu.index:<6}{bar(gpu.busy)} {gpu.busy:.0%} busy, {size(gpu.memory_used)} of"
                f" {size(gpu.memory_total)}  {gpu.name}"
            )
        )
    if not frame.gpus:
        lines.append(Text(f"gpu       {frame.no_gpus}"))
    return lines


def _table(processes: Sequence[ProcessFrame]) -> list[Text]:
    lines = [Text(f"{'pid':>8} {'state':<11}{'cpu':>6}{'memory':>11}{'read/s':>11}  command", style="bold")]
    first, *others = processes
    shown = [first, *sorted(others, key=lambda one: -one.cpu)]
    for one in shown[:PROCESSES]:
        read = "" if one.read is None else size(one.read)
        look = one.look
        lines.append(
            Text(
                f"{look.pid:>8} {look.state:<11}{one.cpu:>6.2f}{size(look.memory):>11}{read:>11} "
                f" {_command(look.command)}"
            )
        )
    if len(shown) > PROCESSES:
        lines.append(Text(f"{'':>8} and {len(shown) - PROCESSES} more"))
    return lines


def _ranks(frame: Frame) -> list[Text]:
    lines = [Text(f"{'rank':>6}{'pid':>9}{'samples/s':>12}{'stall now':>11}  epoch", style="bold")]
    for rank in frame.ranks:
        running = [one for one in rank.loaders if one.active]
        rate = sum(one.samples_per_second for one in running)
        name = "" if rank.rank is None else str(rank.rank)
        shown = "▶" if rank is frame.slowest else " "
        line = Text(f"{shown}{name:>5}{rank.pid:>9}{rate:>12,.0f}")
        line.append(f"{rank.stall:>11.1%}", style=share_style(rank.stall))
        line.append(f"  {_place(running[0])}" if running else "  no loader runs")
        lines.append(line)
    return lines


def _name(loader: LoaderFrame) -> str:
    batch = "not batched" if loader.batch_size is None else f"batches of {loader.batch_size}"
    return f"loader {loader.number}: {printable(loader.dataset)}, {batch}"


def _place(loader: LoaderFrame) -> str:
    whole = "" if loader.length is None else f" of {loader.length:,}"
    return f"{loader.epoch}, batch {loader.batches:,}{whole}"


def _idle(loader: LoaderFrame) -> Text:
    if loader.state == "new":
        return Text(f"{_name(loader)}: not begun", style="dim")
    return Text(
        f"{_name(loader)}: epoch {loader.epoch} {loader.state}, {loader.epoch_samples_per_second:,.0f}/s,"
        f" stall {loader.epoch_stall:.1%}",
        style="dim",
    )


def _loader(loader: LoaderFrame, stalls: Sequence[float | None]) -> list[Text]:
    lines = [Text(_name(loader), style="bold")]
    if loader.state == "starting":
        lines.append(
            Text(f"epoch     {loader.epoch}: first batch awaited for {loader.waiting_seconds:.1f} s")
        )
    else:
        lines += [_progress(loader), _rates(loader), _stall(loader, stalls)]
        if loader.waiting_seconds >= LONG_SECONDS:
            text = f"the step has been waiting for its batch for {loader.waiting_seconds:.1f} s"
            lines.append(Text(text, style="bold red"))
    lines += _stores(loader)
    if loader.remote is not None:
        lines += _remote(loader.remote)
    for stage in loader.stages:
        load = "" if stage.load is None else f", {stage.load:.0%} of it asked for"
        together = ", together" if stage.name == "native" else ""
        style = "red" if (stage.load or 0) > 1 else ""
        line = Text(f"{stage.name:<10}")
        line.append(bar(stage.load or 0.0), style=style)
        lines.append(line.append(f" supplies {stage.supply:,.0f}/s{load}{together}", style=style))
    bad = [
        f"{n:,} samples {what}"
        for n, what in ((loader.skipped, "skipped"), (loader.replaced, "replaced"))
        if n
    ]
    return lines + ([Text(", ".join(bad), style="yellow")] if bad else [])


def _progress(loader: LoaderFrame) -> Text:
    line = Text("epoch     ")
    if loader.length:
        line.append(f"{bar(loader.batches / loader.length)} {loader.batches / loader.length:4.0%}  ")
    line.append(_place(loader))
    return line.append(f", {duration(loader.left_seconds)} left" if loader.left_seconds is not None else "")


def _rates(loader: LoaderFrame) -> Text:
    line = Text("speed     ")
    line.append(f"{loader.samples_per_second:,.0f} samples/s", style="bold")
    line.append(f" now, {loader.epoch_samples_per_second:,.0f} in the epoch")
    return line.append(f"; {size(loader.transfer)}/s to the device" if loader.transfer else "")


def _stall(loader: LoaderFrame, stalls: Sequence[float | None]) -> Text:
    line = Text("stall     ")
    now = "not known" if loader.stall is None else f"{loader.stall:.1%}"
    line.append(now, style="" if loader.stall is None else f"bold {share_style(loader.stall)}")
    line.append(" now, ").append(f"{loader.epoch_stall:.1%}", style=share_style(loader.epoch_stall))
    return line.append(" in the epoch  ").append(sparkline(stalls))


def _stores(loader: LoaderFrame) -> list[Text]:
    lines = []
    if loader.depth:
        lines.append(
            Text(f"queue     {bar(loader.ready / loader.depth)} {loader.ready:.1f} of {loader.depth} ready")
        )
    if loader.memory_used and loader.memory_allowed:
        share = loader.memory_used / loader.memory_allowed
        lines.append(
            Text(
                f"memory    {bar(share)} {size(loader.memory_used)} of {size(loader.memory_allowed)} allowed"
            )
        )
    return lines


def _remote(remote: RemoteFrame) -> list[Text]:
    fetched = Text(
        f"remote    {size(remote.bytes_per_second)}/s by {remote.requests_per_second:,.0f} requests/s,"
        f" {remote.concurrency} at a time, {1e3 * remote.latency_seconds:,.0f} ms"
    )
    if remote.retries_per_second > 0:
        share = remote.retries_per_second / max(remote.retries_per_second, remote.requests_per_second)
        fetched.append(f", {share:.0%} tried again", style="yellow")
    elif remote.retries:
        fetched.append(f", {remote.retries:,} retries so far")
    full = bar(remote.cache_bytes / remote.cache_capacity) if remote.cache_capacity else bar(0)
    cache = f"cache     {full} {size(remote.cache_bytes)} of {size(remote.cache_capacity)}"
    if remote.found is not None:
        cache += f", {remote.found:.0%} found"
    if remote.evictions_per_second > 0:
        cache += f", {remote.evictions_per_second:,.0f}/s evicted"
    return [fetched, Text(cache)]
