"""Amounts as people read them."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes, in powers of 1000: 25276502016 is "25.3 GB"."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while abs(count) >= 999.5 and len(units) > 1:
        count /= 1000
        del units[0]
    unit = units[0]
    return f"{count:.0f} {unit}" if count >= 99.5 or unit == "bytes" else f"{count:.3g} {unit}"


def rate(count: float) -> str:
    """Bytes per second: "1.2 GB/s"."""
    return f"{size(count)}/s"
