"""Prints checkups and diagnoses on a terminal or into a log: readable at 80 columns and without color."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace_doctor.doctor.records import Advice, Checkup, Diagnosis, Finding
from headrace_doctor.doctor.wording import (
    MARKS,
    TOTAL,
    cost,
    figure,
    gain,
    judgement,
    measured,
    percent,
    plain,
    stages_by_place,
    tally,
    title,
)

STYLES = {"good": "green", "note": "yellow", "bad": "bold red", "unknown": "magenta"}
DIFF_STYLES = {"-": "red", "+": "green"}
BAR = 16  # characters


def print_checkup(console: Console, checkup: Checkup) -> None:
    """Prints the findings by section, what to do under each, and how many are bad."""
    console.print(_text(checkup.subject, "bold"))
    for heading, findings in checkup.sections:
        _heading(console, heading)
        _print_findings(console, findings)
    console.print()
    console.print(_text(tally(finding.judgement for finding in checkup.findings), "bold"))


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Prints the bottleneck and the one change to make, then the evidence and what else could be done."""
    verdict = diagnosis.verdict
    found = judgement(verdict)
    head = _text(f"{MARKS[found][0]} {title(verdict)}: ", STYLES[found])
    console.print(head.append(plain(verdict.sentence), style="bold default"))
    for advice in diagnosis.advice[:1]:
        _print_advice(console, "Fix: ", advice)
    _rows(console, [("  · ", line) for line in (*verdict.evidence, cost(verdict)) if line])
    console.print()
    command = " ".join(diagnosis.command)
    for lead, code in (("command", command), ("loader", diagnosis.loader), ("used at", diagnosis.where)):
        console.print(_text(f"{lead:<7}  {code}"), soft_wrap=True)
    _print_time(console, diagnosis)
    _print_rates(console, diagnosis)
    _print_stages(console, diagnosis)
    if diagnosis.causes[1:]:
        _heading(console, "Other causes")
    for cause in diagnosis.causes[1:]:
        _rows(console, [("  ", f"{title(cause)}: {cause.sentence}")], "bold")
        _rows(console, [("    · ", line) for line in (*cause.evidence, cost(cause)) if line])
    if diagnosis.advice[1:]:
        _heading(console, "What else could be changed")
    for number, advice in enumerate(diagnosis.advice[1:], 2):
        _print_advice(console, f"{number}. ", advice)
    if diagnosis.memory:
        _heading(console, "Memory")
        _print_findings(console, diagnosis.memory)
    if diagnosis.notes:
        _heading(console, "Notes")
        _rows(console, [("  · ", note) for note in diagnosis.notes])
    if diagnosis.watching:
        console.print(_text(f"\nWatching took {percent(diagnosis.watching)} of the cores' time.", "dim"))


def render_text(diagnosis: Diagnosis) -> str:
    """The report as text of 100 columns, without color."""
    console = Console(width=100, color_system=None)
    with console.capture() as captured:
        print_diagnosis(console, diagnosis)
    return captured.get()


def _text(text: str, style: str = "") -> Text:
    """Text taken literally: no markup, no control characters."""
    return Text(plain(text), style=style, overflow="fold")


def _heading(console: Console, heading: str) -> None:
    console.print()
    console.print(_text(heading, "bold"))


def _rows(console: Console, rows: Iterable[tuple[str, str]], style: str = "") -> None:
    """Lines with a lead, wrapped beside it."""
    for lead, text in rows:
        grid = Table.grid()
        grid.add_column(no_wrap=True)
        grid.add_row(Text(lead, style), _text(text, style))
        console.print(grid)


def _print_findings(console: Console, findings: Iterable[Finding]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(max_width=24)
    for finding in findings:
        mark = Text("  ").append(" ".join(MARKS[finding.judgement]), style=STYLES[finding.judgement])
        grid.add_row(mark, _text(finding.name), _text(finding.value))
        if finding.remedy:
            grid.add_row("", "", _text(f"→ {finding.remedy}", "cyan"))
    console.print(grid)


def _print_advice(console: Console, lead: str, advice: Advice) -> None:
    _rows(console, [(lead, advice.summary)], "bold")
    console.print(_text(" " * len(lead) + gain(advice), "cyan"))
    for line in advice.diff:  # code, to be copied: never wrapped
        console.print(_text(f"    {line}", DIFF_STYLES.get(line[:1], "dim")), soft_wrap=True)


def _bar(share: float, short: bool) -> ProgressBar:
    return ProgressBar(1.0, min(1.0, share), width=BAR, complete_style="red" if short else "cyan")


def _table(*columns: str) -> Table:
    """The first two columns are a name and a bar, the others numbers."""
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number > 1 else "left", overflow="fold")
    table.columns[1].min_width = BAR
    return table


def _print_time(console: Console, diagnosis: Diagnosis) -> None:
    if not diagnosis.time:
        return
    _heading(console, "Where the time goes")
    table = _table("", "", "share")
    for part in diagnosis.time:
        table.add_row(_text(f"  {part.name}"), _bar(part.share, False), percent(part.share))
    console.print(table)


def _print_rates(console: Console, diagnosis: Diagnosis) -> None:
    _heading(console, "How it was measured")
    most = max(rate.samples_per_second for rate in diagnosis.rates)
    least = min(rate.samples_per_second for rate in diagnosis.rates[:3])
    table = _table("", "", "samples/s", "95% range")
    for rate in diagnosis.rates:
        name = _text(f"  {measured(rate.name)}")
        value = rate.samples_per_second
        limits = f"{figure(rate.low)} to {figure(rate.high)}"
        table.add_row(name, _bar(value / most, value == least), figure(value), limits)
    console.print(table)
    waited = f"The step waited for data for {percent(diagnosis.stall)} of its time."
    console.print(_text(f"  {waited}", "bold"))


def _print_stages(console: Console, diagnosis: Diagnosis) -> None:
    if not diagnosis.stages:
        return
    _heading(console, "Throughput of each stage of loading, if it were the only one")
    limit = diagnosis.rate("demand").samples_per_second
    end = f"The step's throughput is {figure(limit)} samples/s: the bar's end."
    console.print(_text(f"  {end} ✗: slower than that."))
    table = _table("", "", "samples/s", "ms each", "waiting")
    for place, rows in stages_by_place(diagnosis):
        table.add_row(_text(f"  {place}", "dim"))
        for row in rows:
            short = row.samples_per_second < limit
            style = STYLES["bad"] if short else ""
            mark = "✗" if short else "=" if row.kind == TOTAL else " "
            bar = _bar(row.samples_per_second / limit, short)
            milliseconds = figure(1000 * row.seconds_per_sample)
            rate = Text(figure(row.samples_per_second), style=style)
            table.add_row(_text(f"  {mark} {row.name}", style), bar, rate, milliseconds, percent(row.waiting))
    console.print(table)
