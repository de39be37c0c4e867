"""`headrace pack`, `index`, `verify` and `info`: what they print, and their exit codes."""

from __future__ import annotations

import gc
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import headrace
from headrace._native import ffi
from headrace._native.decoders import native_formats
from headrace.errors import NativeError
from support.command import run_command
from support.equal import same
from support.jpegs import cmyk, image_folder, jpeg
from support.odd_files import saved


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return image_folder(tmp_path / "src", 12)


def test_ctrl_c_says_what_is_kept(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.packs.pack.pack", interrupted)
    done = run_command("pack", folder, tmp_path / "dest")
    assert done.exit_code == 130
    assert "Interrupted: finished shards are kept. Run the same command again" in done.stderr


def test_pack_verify_and_info(folder: Path, tmp_path: Path) -> None:
    (folder / "class0" / "notes.md").write_text("left out")
    dest = tmp_path / "dest"
    done = run_command("pack", folder, dest, "--workers", "2", "--shuffle", "4")
    assert done.exit_code == 0, done.stderr
    assert f"{dest}: 12 samples in 1 shards, " in done.stdout
    assert "1 files that ImageFolder ignores were left out: md (1)" in done.stderr

    done = run_command("pack", folder, dest, "--shuffle", "4")
    assert done.exit_code == 0, done.stderr
    assert f"{dest} is up to date: 12 samples in 1 shards, " in done.stdout

    done = run_command("verify", dest, "--against", folder)
    assert (done.exit_code, done.stdout) == (0, f"{dest}: 12 samples, 0 problems\n")

    done = run_command("info", dest)
    assert done.exit_code == 0, done.stderr
    for line in ("12 (12 with a label)", "classes          3", "formats          jpg 12", "shuffle=4"):
        assert line in done.stdout

    shard = dest / "shard-000000.tar"
    data = bytearray(shard.read_bytes())
    data[700] ^= 1
    shard.write_bytes(data)
    done = run_command("verify", dest)
    assert done.exit_code == 1
    assert "the image's bytes aren't those that were packed" in done.stdout
    assert done.stdout.endswith(f"{dest}: 12 samples, 1 problems\n")


def test_every_format_is_indexed_packed_described_and_read_as_in_torch(tmp_path: Path) -> None:
    source, dest = image_folder(tmp_path / "src", 5), tmp_path / "dest"
    rng = np.random.default_rng(2)
    files = {
        "cmyk.jpg": cmyk(rng, 210, 230),
        "ycck.jpg": cmyk(rng, 61, 90, ycck=True),
        "gray.jpg": jpeg(rng, "gray", 240, 220),
        "really-png.jpg": saved("PNG"),
        "palette.png": saved("PNG", "P"),
        "gray.png": saved("PNG", "L"),
        "alpha.webp": saved("WEBP", "RGBA"),
    }
    for name, data in files.items():
        (source / "class1" / name).write_bytes(data)
    transform = v1.Compose([v1.Resize(50), v1.CenterCrop(44), v1.ToTensor()])
    dataset = ImageFolder(str(source), transform)
    expected = list(TorchDataLoader(dataset, 4))

    done = run_command("index", source)
    assert done.exit_code == 0, done.stderr
    assert "of 9 files (0 reused) have entry points" in done.stdout
    assert same(list(headrace.DataLoader(dataset, 4)), expected)

    done = run_command("pack", source, dest)
    assert done.exit_code == 0, done.stderr
    done = run_command("verify", dest, "--against", source)
    assert (done.exit_code, done.stdout) == (0, f"{dest}: 12 samples, 0 problems\n")
    done = run_command("info", dest)
    assert "jpg 9, png 2, webp 1" in done.stdout

    loader = headrace.DataLoader(headrace.PackedDataset(dest, transform), 4)
    assert same(list(loader), expected)
    decoded = loader.stats().decoded_by
    assert decoded["pillow"] == 0 or native_formats() != ("JPEG", "PNG", "WEBP")


def test_errors_of_the_user_are_exit_code_2(folder: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (("pack", tmp_path / "nowhere", tmp_path / "dest"), "headrace pack: "),
        (("pack", folder, folder), "src exists already: remove it, or choose another destination"),
        (("pack", folder, tmp_path / "dest", "--strip"), "it needs optimize=True"),
        (("pack", folder, tmp_path / "dest", "--reencode", "gif"), "gif"),
        (("verify", folder), "can't be read as a pack's index"),
        (("info", folder), "can't be read as a pack's index"),
        (("index", tmp_path / "nowhere"), "nowhere isn't a folder"),
        (("index", headrace.pack(folder, tmp_path / "pack").path), "was made by headrace pack"),
    ):
        done = run_command(*arguments)
        assert done.exit_code == 2
        assert message in done.stderr.replace("\n", " ")
        assert "Traceback" not in done.stderr


def test_a_native_library_of_another_build_is_no_traceback(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_another_build() -> None:
        raise NativeError("reinstall headrace")

    gc.collect()  # finalizers of what earlier tests have left need the library, too
    monkeypatch.setattr(ffi, "library", of_another_build)
    done = run_command("pack", folder, tmp_path / "pack")
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", "headrace pack: reinstall headrace\n")


def test_help_says_what_is_lossy_and_which_codes_there_are() -> None:
    text = " ".join(run_command("pack", "--help").stdout.replace("│", " ").split())
    assert "LOSSY: scale images down to this longer side" in text
    assert "LOSSY: JPEG quality of re-encoded images" in text
    assert "jpeg is LOSSY" in text
    assert "Exit codes: 0 packed, or already up to date; 2 wrong usage" in text
    assert "1 bad records were found" in " ".join(run_command("verify", "--help").stdout.split())


def noisy_jpeg(path: Path) -> None:
    """An image of enough bytes to have entry points."""
    pixels = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def test_index_says_what_it_wrote(tmp_path: Path) -> None:
    noisy_jpeg(tmp_path / "a.jpg")
    done = run_command("index", tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "1 of 1 files (0 reused) have entry points" in done.stdout
    assert (tmp_path / ".headrace-entry-points.arrow").is_file()


def test_index_of_shards_gives_them_entry_points(tmp_path: Path) -> None:
    folder, shards = tmp_path / "folder", tmp_path / "shards"
    folder.mkdir()
    for i in range(5):
        noisy_jpeg(folder / f"{i}.jpg")
    shards.mkdir()
    for number in range(2):
        with tarfile.open(shards / f"{number}.tar", "w") as tar:
            for path in sorted(folder.iterdir())[number::2]:
                tar.add(path, path.name)
    (shards / "index.arrow.partial").mkdir()
    done = run_command("index", shards)
    assert done.exit_code == 0, done.stderr
    assert "5 of 5 samples have entry points" in done.stdout
    assert sorted(path.name for path in shards.iterdir()) == ["0.tar", "1.tar", "index.arrow"]
    dataset = headrace.PackedDataset(shards)
    assert len(dataset) == 5
    assert dataset.source.entries.indexed == 5
    assert run_command("verify", shards).exit_code == 0
    again = run_command("index", shards)
    assert again.exit_code == 0, again.stderr


def test_index_refuses_an_lmdb(tmp_path: Path) -> None:
    path = tmp_path / "data.lmdb"
    path.write_bytes(b"")
    done = run_command("index", path)
    assert done.exit_code == 2
    assert f"{path} is an LMDB, which isn't read natively. Pack it: headrace pack" in done.stderr
    with pytest.raises(headrace.PackError, match="is an LMDB"):
        headrace.PackedDataset(path)
