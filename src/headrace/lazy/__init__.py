"""Images whose pixels are decoded when they are looked at, and then only those that are needed."""

from headrace.lazy.image import LazyImage, LazyJpegFile, install, open, uninstall

__all__ = ["LazyImage", "LazyJpegFile", "install", "open", "uninstall"]
