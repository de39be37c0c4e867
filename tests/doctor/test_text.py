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

from headrace.doctor.records import Checkup, Diagnosis, Finding
from headrace.doctor.text import print_checkup, print_diagnosis
from support import doctor_records as records

GOLDEN = Path(__file__).parents[1] / "golden" / "doctor"

Record = Callable[[], Checkup | Diagnosis]
RECORDS: dict[str, Record] = {"machine": records.machine, **records.ALL}


def printed(record: Checkup | Diagnosis, width: int = 80, colour: bool = False) -> str:
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
    )
    if isinstance(record, Checkup):
        print_checkup(console, record)
    else:
        print_diagnosis(console, record)
    return out.getvalue()


@pytest.mark.parametrize("name", RECORDS)
def test_golden(name: str) -> None:
    text = printed(RECORDS[name]())
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", RECORDS)
def test_no_line_is_wider_than_the_console_or_ends_in_blanks(name: str, width: int) -> None:
    lines = printed(RECORDS[name](), width).splitlines()
    assert max(cell_len(line) for line in lines) <= width
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("name", RECORDS)
def test_colour_adds_nothing_that_must_be_read(name: str) -> None:
    coloured = printed(RECORDS[name](), colour=True)
    assert "\x1b[" in coloured
    assert Text.from_ansi(coloured).plain.splitlines() == printed(RECORDS[name]()).splitlines()


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


def test_without_demand_no_stage_is_judged() -> None:
    diagnosis = replace(records.input_bound(), rates=())
    text = printed(diagnosis)
    assert "│" not in text
    assert "✗" not in text.split("\n", 1)[1]
    assert "36,364" in text
