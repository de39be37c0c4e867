"""FFCV over uncompressed pixels: nothing is decoded at all, at about seven times the disk of the folder."""

import ffcv_jpg
from ffcv_jpg import PACKAGES

__all__ = ["ABOUT", "PACKAGES", "loader", "prepare"]

ABOUT = "no decoding: uncompressed pixels on disk; area resize"


def prepare(folder, work):
    return ffcv_jpg.write(folder, work / "ffcv" / "raw.beton", "raw")


def loader(folder, work, dtype, threads, **settings):
    return ffcv_jpg.loader(folder, work, dtype, threads, file="raw.beton", **settings)
