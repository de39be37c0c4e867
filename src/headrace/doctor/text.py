"""What the doctor says, on a terminal or in a log: readable at 80 columns and without colour."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from headrace.doctor.records import Advice, Cause, Checkup, Diagnosis, Finding
from headrace.doctor.wording import (
    MARKS,
    METHOD,
    StageRow,
    certainty,
    figure,
    gain,
    percent,
    plain,
    rate_named,
    stages_by_place,
    tally,
    title,
)

STYLES = {"good": "green", "note": "yellow", "bad": "bold red", "unknown": "magenta"}
DIFF_STYLES = {"-": "red", "+": "green"}

BAR = 20  # characters of a bar
DEMAND_AT = 14  # of them, where the bars of stages have the line of demand
NAME_WIDTH = 24  # characters of a name before it goes on in the next line

EIGHTHS = " ▏▎▍▌▋▊▉█"


def print_checkup(console: Console, checkup: Checkup) -> None:
    """Prints the findings by section, what to do under each, and how many are bad; for 80 columns or more."""
    console.print(_text(checkup.subject, "bold"))
    width = _name_width(checkup.findings)
    for heading, findings in checkup.sections:
        _print_heading(console, heading)
        _print_findings(console, findings, width)
    console.print()
    console.print(_text(tally(finding.judgement for finding in checkup.findings), "bold"))


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Prints the verdict, then what it rests on, then what to change; for 80 columns or more."""
    _print_verdict(console, diagnosis)
    _print_rates(console, diagnosis)
    _print_stages(console, diagnosis)
    if diagnosis.causes[1:]:
        _print_heading(console, "Other causes")
        for cause in diagnosis.causes[1:]:
            _print_cause(console, cause)
    if diagnosis.advice:
        _print_heading(console, "What to change")
        for number, advice in enumerate(diagnosis.advice, 1):
            _print_advice(console, number, advice)
    if diagnosis.memory:
        _print_heading(console, "Memory")
        _print_findings(console, diagnosis.memory, _name_width(diagnosis.memory))
    if diagnosis.notes:
        _print_heading(console, "Notes")
        for note in diagnosis.notes:
            _print_hanging(console, Text("  · "), _text(note))
    if diagnosis.watching:
        console.print()
        console.print(_text(f"Watching cost {percent(diagnosis.watching)} of the step's time.", "dim"))


def _text(text: str, style: str = "") -> Text:
    """Text that is taken as it is: no markup, no control characters; only words that don't fit are broken."""
    return Text(plain(text), style=style, overflow="fold")


def _print_heading(console: Console, heading: str) -> None:
    console.print()
    console.print(_text(heading, "bold"))


def _print_hanging(console: Console, lead: Text, body: Text) -> None:
    """The lead once, and the body beside it, on as many lines as it needs."""
    space = " " * lead.cell_len
    for number, line in enumerate(body.wrap(console, max(20, console.width - lead.cell_len))):
        line.rstrip()
        console.print((lead if number == 0 else Text(space)) + line)


def _name_width(findings: Iterable[Finding]) -> int:
    return min(NAME_WIDTH, max((cell_len(plain(finding.name)) for finding in findings), default=0))


def _print_findings(console: Console, findings: Iterable[Finding], name_width: int) -> None:
    marks = max(len(word) for _, word in MARKS.values())
    for finding in findings:
        mark, word = MARKS[finding.judgement]
        lead = Text("  ").append(f"{mark} {word:<{marks}}", style=STYLES[finding.judgement]).append("  ")
        name = _text(finding.name)
        indent = Text(" " * (lead.cell_len + name_width + 2))
        if name.cell_len > name_width:
            _print_hanging(console, lead, name)
            lead = indent
        else:
            lead = lead + name + " " * (name_width - name.cell_len + 2)
        _print_hanging(console, lead, _text(finding.value))
        if finding.remedy:
            _print_hanging(console, indent + Text("→ ", style="cyan"), _text(finding.remedy, "cyan"))


def _print_verdict(console: Console, diagnosis: Diagnosis) -> None:
    verdict = diagnosis.verdict
    judgement = "good" if verdict.kind == "healthy" else "bad"
    head = _text(f"{MARKS[judgement][0]} {title(verdict)}", STYLES[judgement])
    console.print(head.append(f" ({certainty(verdict)})", style="not bold default"))
    _print_hanging(console, Text(""), _text(verdict.sentence, "bold"))
    for line in verdict.evidence:
        _print_hanging(console, Text("  · "), _text(line))
    console.print()
    _print_hanging(console, Text("command  "), _text(" ".join(diagnosis.command)))
    _print_hanging(console, Text("loader   "), _text(diagnosis.loader))
    _print_hanging(console, Text("used at  "), _text(diagnosis.where))


def _print_rates(console: Console, diagnosis: Diagnosis) -> None:
    _print_heading(console, "How it was measured")
    if not diagnosis.rates:
        console.print("  No rate could be measured.")
        return
    labels = [_text(f"{rate.name:<6}  {METHOD.get(rate.name, '')}".rstrip()) for rate in diagnosis.rates]
    width = min(NAME_WIDTH, max(label.cell_len for label in labels))
    console.print(Text(" " * (width + BAR + 4) + "samples/s  95 % range", style="dim"))
    most = max(rate.samples_per_second for rate in diagnosis.rates)
    least = min(rate.samples_per_second for rate in diagnosis.rates[: len(METHOD)])
    for rate, label in zip(diagnosis.rates, labels, strict=True):
        value = rate.samples_per_second
        bar = Text(f"{_bar(value, most):<{BAR}}", style="yellow" if value == least else "cyan")
        figures = Text(f"{figure(value):>9}  {figure(rate.low)} to {figure(rate.high)}")
        _print_row(console, Text("  "), label, width, Text("  ").join([bar, figures]))
    waited = f"The step waited for data for {percent(diagnosis.stall)} of its time."
    console.print(_text(f"  {waited}", "bold"))


def _print_row(console: Console, lead: Text, label: Text, width: int, rest: Text) -> None:
    """A row of a chart; a label that is too long has lines of its own above."""
    if label.cell_len > width:
        _print_hanging(console, lead, label)
        lead, label = Text(" " * lead.cell_len), Text("")
    console.print(lead + label + " " * (width - label.cell_len + 2) + rest)


def _bar(value: float, most: float) -> str:
    """A bar in eighths of a character; the smallest that isn't nothing is still seen."""
    if value <= 0 or most <= 0:
        return ""
    eighths = max(1, round(min(1.0, value / most) * BAR * 8))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _print_stages(console: Console, diagnosis: Diagnosis) -> None:
    places = stages_by_place(diagnosis)
    if not places:
        return
    _print_heading(console, "What each stage of loading could do alone")
    demand = rate_named(diagnosis, "demand")
    limit = demand.samples_per_second if demand else 0.0
    if demand:
        console.print(_text(f"  │ is what the step takes: {figure(limit)} samples/s.  ✗ can't keep up."))
    rows = [row for _, rows in places for row in rows]
    width = min(NAME_WIDTH, max(cell_len(plain(row.name)) for row in rows))
    console.print(Text(" " * (width + BAR + 6) + "  samples/s  ms each  waiting", style="dim"))
    most = max((row.samples_per_second for row in rows if math.isfinite(row.samples_per_second)), default=0)
    for place, group in places:
        _print_hanging(console, Text("  "), _text(place, "dim"))
        for row in group:
            style = STYLES["bad"] if row.short else ""
            lead = Text(f"  {'✗' if row.short else '=' if row.total else ' '} ", style=style)
            bar = (
                _bar_with_line(row, limit) if demand else Text(f"{_bar(row.samples_per_second, most):<{BAR}}")
            )
            figures = Text(f"  {figure(row.samples_per_second):>9}", style=style)
            figures.append(f"{figure(1000 * row.seconds_per_sample):>9}", style="not bold default")
            figures.append(f"{percent(row.waiting):>9}", style="not bold default")
            _print_row(console, lead, _text(row.name, style), width, bar + figures)


def _bar_with_line(row: StageRow, demand: float) -> Text:
    """A bar on a scale with the line of demand at one place; one that is longer than the scale ends in ▸."""
    reach = row.samples_per_second / demand * DEMAND_AT
    cells = f"{_bar(reach, BAR):<{BAR}}"
    if reach > BAR:
        cells = cells[:-1] + "▸"
    bar = Text(cells, style="red" if row.short else "cyan")
    line = Text("│", style="" if row.short else "reverse cyan")
    return bar[:DEMAND_AT] + line + bar[DEMAND_AT + 1 :]


def _print_cause(console: Console, cause: Cause) -> None:
    _print_hanging(
        console, Text("  "), _text(title(cause), "bold").append(f" ({certainty(cause)})", style="not bold")
    )
    _print_hanging(console, Text("    "), _text(cause.sentence))
    for line in cause.evidence:
        _print_hanging(console, Text("    · "), _text(line))


def _print_advice(console: Console, number: int, advice: Advice) -> None:
    head = _text(advice.summary, "bold").append(f"  {gain(advice)}", style="not bold cyan")
    _print_hanging(console, Text(f"  {number}. "), head)
    for line in advice.diff:
        style = DIFF_STYLES.get(line[:1], "dim")
        sign, code = (line[:1], line[1:]) if line[:1] in ("-", "+", " ") else (" ", line)
        _print_hanging(console, Text(f"     {sign} ", style=style), _text(code, style))
