"""What the doctor prints, against golden files.

After a change that is meant: UPDATE_GOLDEN=1, then read the diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from headrace_doctor.doctor.records import Advice, Checkup, Diagnosis, Finding
from headrace_doctor.doctor.text import print_checkup, print_diagnosis
from headrace_doctor.doctor.wording import plain
from support import doctor_records as records

GOLDEN = Path(__file__).parents[1] / "golden" / "doctor"

Record = Callable[[], Checkup | Diagnosis]
RECORDS: dict[str, Record] = {"machine": records.machine, **records.ALL}


def printed(record: Checkup | Diagnosis, width: int = 80, color: bool = False) -> str:
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        legacy_windows=False,
    )
    if isinstance(record, Checkup):
        print_checkup(console, record)
    else:
        print_diagnosis(console, record)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("name", RECORDS)
def test_the_text_of_a_diagnosis_is_the_golden_one(name: str) -> None:
    text = printed(RECORDS[name]())
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", RECORDS)
def test_no_line_but_code_is_wider_than_the_console(name: str, width: int) -> None:
    record = RECORDS[name]()
    advice = record.advice if isinstance(record, Diagnosis) else ()
    code = {plain(line).strip() for one in advice for line in one.diff}
    lines = [line for line in printed(record, width).splitlines() if line.strip() not in code]
    lines = [line for line in lines if not line.startswith(("command  ", "loader   ", "used at  "))]
    assert max(cell_len(line) for line in lines) <= width


def test_code_is_never_wrapped() -> None:
    line = "+loader = DataLoader(" + ", ".join(f"argument_{n}={n}" for n in range(12)) + ")"
    advice = Advice("workers", "num_workers=1 → 2", (line,), 2.0)
    assert f"    {line}" in printed(replace(records.healthy(), advice=(advice,))).splitlines()


def test_the_bottleneck_and_the_one_change_come_first() -> None:
    first = printed(records.input_bound()).splitlines()[:4]
    assert "Decoding" in first[0]
    assert any(line.startswith("Fix: headrace.DataLoader in place of torch's") for line in first)


@pytest.mark.parametrize("name", RECORDS)
def test_color_adds_nothing_that_must_be_read(name: str) -> None:
    colored = printed(RECORDS[name](), color=True)
    assert "\x1b[" in colored
    # Bars aside: what they are short of is drawn in color, and left out without.
    shown = (Text.from_ansi(text).plain for text in (colored, printed(RECORDS[name]())))
    words = [
        [line.replace("━", "").replace("╸", "").replace("╺", "").split() for line in text.splitlines()]
        for text in shown
    ]
    assert words[0] == words[1]


def test_what_users_name_is_neither_markup_nor_a_control_sequence() -> None:
    text = printed(records.hostile())
    assert "\x1b" not in text
    assert "[red]" in text
    text.encode()  # no lone surrogate is left, though file names may hold them


def test_control_sequences_in_a_checkup_are_shown_not_obeyed() -> None:
    finding = Finding("a\x1b[2J", "b\rc", "bad", "rm 'x\x07'")
    text = printed(Checkup("d\x1b", (("e\x1b", (finding,)),)))
    assert not {"\x1b", "\r", "\x07"} & set(text)


def test_a_stage_is_marked_where_it_cannot_keep_up() -> None:
    lines = printed(records.input_bound()).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("  ✗ ")] == ["decode", "all"]


def test_stages_that_keep_up_alone_may_fail_together() -> None:
    stage = records.healthy().stages[1]
    two = (replace(stage, samples_per_second=2000.0), replace(stage, name="b", samples_per_second=2000.0))
    lines = printed(replace(records.healthy(), stages=two)).splitlines()
    assert [line.split()[1] for line in lines if line.startswith("  ✗ ")] == ["all"]
    assert "1,000" in next(line for line in lines if line.startswith("  ✗ all"))
