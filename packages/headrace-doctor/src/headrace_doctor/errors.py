"""The doctor's errors, and what is printed of names, sizes and durations."""

from __future__ import annotations


class DoctorError(Exception):
    """The root of what the doctor raises."""


class ConfigError(DoctorError, ValueError):
    """An invalid argument. The message names it, its value and what is allowed."""


def printable(text: str) -> str:
    r"""`text` on one line, with undecodable bytes as ``\udcXX`` and terminal controls as ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def size(count: float) -> str:
    """Bytes in powers of 1000 for people: 25276502016 is "25.3 GB"."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while abs(count) >= 999.5 and len(units) > 1:
        count /= 1000
        del units[0]
    unit = units[0]
    return f"{count:.0f} {unit}" if count >= 99.5 or unit == "bytes" else f"{count:.3g} {unit}"


def duration(seconds: float) -> str:
    """Three digits with a unit: 1.23 s, 41.2 ms, 870 µs."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 0.9995:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
