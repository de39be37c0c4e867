"""ImageNet's wnids are taken from what lies beside the data, and a damaged devkit is no obstacle."""

from __future__ import annotations

from pathlib import Path

import torch

from headrace.packs.ilsvrc import DEVKIT, META, known_wnids

WNIDS = ("n01440764", "n01443537", "n01484850")


def write_meta(folder: Path) -> None:
    """As torchvision's ImageNet does."""
    torch.save((dict.fromkeys(reversed(WNIDS), ("a name",)), list(WNIDS)), folder / META)


def test_torchvisions_meta_file_is_found_in_the_folder_or_above_it(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    assert known_wnids(str(tmp_path)) == ()
    write_meta(tmp_path)
    assert known_wnids(str(tmp_path)) == WNIDS
    assert known_wnids(str(tmp_path / "train")) == WNIDS


def test_damaged_metadata_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / META).write_bytes(b"no such file")
    (tmp_path / "train" / DEVKIT).write_bytes(b"no such archive")
    assert known_wnids(str(tmp_path / "train")) == ()
    write_meta(tmp_path)
    assert known_wnids(str(tmp_path / "train")) == WNIDS
    torch.save({"not": "this"}, tmp_path / "train" / META)
    assert known_wnids(str(tmp_path / "train")) == WNIDS
