"""`headrace doctor data` as a user runs it: what it prints, its exit codes, and its JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import Result

import headrace
from support.command import run_command
from support.jpegs import image_folder
from support.odd_files import saved


def examine(*arguments: str | Path) -> Result:
    """Runs the verb."""
    return run_command("doctor", "data", *arguments, columns=300)


def words(text: str) -> str:
    """The text in one line: tables break lines."""
    return " ".join(text.split())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    image_folder(tmp_path / "set" / "train", 12, seed=1)
    image_folder(tmp_path / "set" / "val", 6, seed=2)
    return tmp_path / "set"


def findings(path: Path) -> dict[str, dict[str, Any]]:
    checkup = json.loads(path.read_text())
    return {f["name"]: f for _, section in checkup["sections"] for f in section}


def test_a_sound_folder_is_exit_code_0(folder: Path) -> None:
    done = examine(folder)
    assert done.exit_code == 0, done.stdout
    assert "18 read and decoded to the last pixel" in words(done.stdout)
    assert "the same 3 as those of train" in words(done.stdout)
    assert done.stderr == ""  # a bar is for terminals


def test_problems_of_a_folder_are_reported_file_by_file(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "train" / "class0" / "00000.jpg").read_bytes()
    (folder / "train" / "class1" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "train" / "class1" / "empty.jpg").touch()
    (folder / "train" / "class1" / "page.jpg").write_text("<html>not found</html>")
    (folder / "train" / "class1" / "gone.jpg").symlink_to("/nowhere/gone.jpg")
    (folder / "train" / "class1" / "png.jpg").write_bytes(saved("PNG"))
    (folder / "train" / "class1" / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic....")
    (folder / "train" / "class3").mkdir()
    done = examine(folder, "--json", tmp_path / "out.json")
    assert done.exit_code == 1
    found = findings(tmp_path / "out.json")
    assert {name for name, finding in found.items() if finding["judgement"] == "bad"} == {
        "empty classes",
        "classes of val",
        "images passed over",
        "broken links",
        "empty files",
        "cut short",
        "not images",
    }
    assert list(found["cut short"]["details"]["files"]) == ["train/class1/cut.jpg"]
    assert found["not images"]["details"]["files"]["train/class1/page.jpg"].startswith("an HTML page")
    assert found["misnamed"]["judgement"] == "note"
    for finding in found.values():
        assert finding["remedy"] or finding["judgement"] != "bad", finding
        assert finding["value"].split("\n")[0] in words(done.stdout) or len(finding["value"]) > 200


def test_quick_decodes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train" / "class1" / "cut.jpg").write_bytes(b"\xff\xd8\xff")
    done = examine(folder, "--quick")
    assert done.exit_code == 0
    assert "19 images, because of --quick" in words(done.stdout)
    assert examine(folder).exit_code == 1


def test_a_split_by_itself_and_a_relative_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "train")
    done = examine(".")
    assert done.exit_code == 0, done.stdout
    assert "holds 3 class folders" in words(done.stdout)


def test_a_pack_is_left_to_verify(folder: Path, tmp_path: Path) -> None:
    pack = Path(headrace.pack(folder / "train", tmp_path / "pack").path)
    done = examine(pack)
    assert done.exit_code == 0, done.stdout
    assert f"headrace verify {pack}" in words(done.stdout)


def test_what_is_not_there_is_exit_code_1_with_a_remedy(folder: Path) -> None:
    done = examine(folder.parent / "sets")
    assert done.exit_code == 1
    assert f"Did you mean {folder}?" in words(done.stdout)
    os.mkdir(folder.parent / "nothing")
    assert examine(folder.parent / "nothing").exit_code == 1


def test_wrong_usage_is_exit_code_2(folder: Path) -> None:
    assert examine().exit_code == 2
    assert examine(folder, "--workers", "0").exit_code == 2
    done = examine(folder, "--json", folder / "nowhere" / "out.json")
    assert done.exit_code == 2
    assert "can't be written" in " ".join(done.stderr.split())


def test_names_that_are_no_text(folder: Path, tmp_path: Path) -> None:
    bad = os.path.join(os.fsencode(folder / "train" / "class0"), b"\xff\x1b[31m.jpg")
    with open(bad, "wb"):
        pass
    done = examine(folder, "--json", tmp_path / "out.json")
    assert done.exit_code == 1
    assert "\x1b" not in done.stdout
    assert "\udcff" in next(iter(findings(tmp_path / "out.json")["empty files"]["details"]["files"]))


def test_warnings_of_pillow_are_not_the_users(folder: Path) -> None:
    picture = Image.new("P", (60, 60))
    picture.info["transparency"] = b"\0\1"
    picture.save(folder / "train" / "class0" / "palette.png", transparency=bytes(3))
    done = examine(folder)
    assert done.exit_code == 0, done.stdout
    assert done.stderr == ""


def test_help_names_the_codes() -> None:
    done = examine("--help")
    words = " ".join(done.stdout.replace("│", " ").split())
    assert "0 no problems; 1 something is bad; 2 wrong usage" in words
