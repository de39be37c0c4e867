"""`headrace pack`, `verify` and `info`, run as a user runs them: what they print, and their exit codes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

import headrace.cli
from support.jpegs import image_folder


@dataclass
class Done:
    code: int
    out: str
    err: str


class Run(Protocol):
    def __call__(self, *arguments: str | Path) -> Done: ...


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, in this process."""

    def call(*arguments: str | Path) -> Done:
        monkeypatch.setattr("sys.argv", ["headrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            headrace.cli.main()
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out, err)

    return call


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return image_folder(tmp_path / "src", 12)


def test_ctrl_c_says_what_is_kept(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.packs.pack.pack", interrupted)
    done = run("pack", folder, tmp_path / "dest")
    assert done.code == 130
    assert "Interrupted: finished shards are kept. Run the same command again" in done.err


def test_pack_verify_and_info(run: Run, folder: Path, tmp_path: Path) -> None:
    (folder / "class0" / "notes.md").write_text("left out")
    dest = tmp_path / "dest"
    done = run("pack", folder, dest, "--workers", "2", "--shuffle", "4")
    assert done.code == 0, done.err
    assert f"{dest}: 12 samples in 1 shards, " in done.out
    assert "1 files that ImageFolder ignores were left out: md (1)" in done.err

    done = run("pack", folder, dest, "--shuffle", "4")
    assert done.code == 0, done.err
    assert f"{dest} is up to date: 12 samples in 1 shards, " in done.out

    done = run("verify", dest, "--against", folder)
    assert (done.code, done.out) == (0, f"{dest}: 12 samples, 0 problems\n")

    done = run("info", dest)
    assert done.code == 0, done.err
    for line in ("12 (12 with a label)", "classes          3", "formats          jpg 12", "shuffle=4"):
        assert line in done.out

    shard = dest / "shard-000000.tar"
    data = bytearray(shard.read_bytes())
    data[700] ^= 1
    shard.write_bytes(data)
    done = run("verify", dest)
    assert done.code == 1
    assert "the image's bytes aren't those that were packed" in done.out
    assert done.out.endswith(f"{dest}: 12 samples, 1 problems\n")


def test_what_cannot_be_done_is_exit_code_2(run: Run, folder: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (("pack", tmp_path / "nowhere", tmp_path / "dest"), "headrace pack: "),
        (("pack", folder, folder), "src exists already: remove it, or choose another destination"),
        (("pack", folder, tmp_path / "dest", "--strip"), "it needs optimize=True"),
        (("pack", folder, tmp_path / "dest", "--reencode", "gif"), "gif"),
        (("verify", folder), "can't be read as a pack's index"),
        (("info", folder), "can't be read as a pack's index"),
    ):
        done = run(*arguments)
        assert done.code == 2
        assert message in done.err
        assert "Traceback" not in done.err


def test_help_says_what_is_lossy_and_which_codes_there_are(run: Run) -> None:
    text = " ".join(run("pack", "--help").out.replace("│", " ").split())
    assert "LOSSY: scale larger images down" in text
    assert "LOSSY: of JPEGs re-encoded" in text
    assert "jpeg is LOSSY" in text
    assert "Exit codes: 0 packed, or up to date; 2 wrong usage" in text
    assert "1 bad records were found" in " ".join(run("verify", "--help").out.split())
