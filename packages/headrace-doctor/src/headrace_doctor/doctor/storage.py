"""Whether storage delivers files as fast as the cores can decode them."""

from __future__ import annotations

from dataclasses import asdict

from headrace_doctor.doctor.records import Finding, Judgement
from headrace_doctor.errors import size
from headrace_doctor.measure.storage import IN_FLIGHT, RANDOM_READ, Mount, Rates, Storage
from headrace_doctor.measure.survey import Decoding

# Less is read in no time, mostly from caches, and says nothing about an epoch.
LEAST_BYTES = 8_000_000
# Share of the available memory that the files of a data set may take and stay cached until the next epoch.
FITS = 0.5
# Mean size in bytes of files that are containers of many samples (tar shards, LMDB): packing would not help.
LARGE_FILE = 8 << 20
# Failures that are listed.
NAMED = 3
IN_VOLUME = "docker run -v /path/of/data:/data"
COPY_HERE = "Copy the data to a local disk before the training, or pack it into large files: headrace pack."
COPY_ELSEWHERE = "Copy the data to a faster disk before the training."
PLACES: dict[str, tuple[str, Judgement, str]] = {
    "local": ("", "good", ""),
    "memory": ("in memory", "good", ""),
    "network": ("over the network", "note", f"Each open and read waits for the server. {COPY_HERE}"),
    "host": ("shared by the host", "note", f"Each open and read is a request to the host. {COPY_HERE}"),
    "fuse": ("by a program, FUSE", "note", f"Each open and read goes through another process. {COPY_HERE}"),
    "layers": ("the container's layers", "note", f"Data belongs into a volume: {IN_VOLUME}."),
}


def storage_findings(
    storage: Storage, decoding: Decoding, cores: float, available: int
) -> tuple[Finding, ...]:
    """The file system, the number of files, and how fast they are read.

    Random reads are bad where many in flight deliver fewer bytes than `cores` cores decode with Pillow, as
    torchvision's datasets do, and a note where they deliver fewer than those decode with Headrace: then the
    storage, not the processor, is the bottleneck. Bytes are compared, so that it holds for files of any size.
    A note instead of bad where the files fit into the available memory: later epochs read them from there.

    Args:
        storage: what was measured.
        decoding: how fast this machine decodes.
        cores: cores' worth of work that may be used for it.
        available: bytes of memory that can be taken.
    """
    findings = [_mount_finding(storage.mount), _files_finding(storage, available)]
    if storage.rates is None:
        return tuple(findings)
    if storage.rates.failures:
        findings.append(_failures_finding(storage.rates.failures))
    if storage.bytes < LEAST_BYTES:
        text = f"only {size(storage.bytes)} to read: too little to measure"
        findings.append(Finding("reads", text, "unknown", "Use the folder of the whole data set."))
        return tuple(findings)
    by_pillow = cores * decoding.pillow_per_core * decoding.image_bytes
    by_headrace = cores * (decoding.headrace_per_core or decoding.pillow_per_core) * decoding.image_bytes
    random = _random_finding(storage, storage.rates, (by_pillow, by_headrace), cores, available)
    return (*findings, random)


def _mount_finding(mount: Mount | None) -> Finding:
    name = "file system"
    if mount is None:
        return Finding(name, "unknown", "unknown")
    where, judgement, remedy = PLACES[mount.place]
    value = f"{mount.kind} of {mount.source} at {mount.point}" + (f" ({where})" if where else "")
    details = {**asdict(mount), "point": str(mount.point)}
    return Finding(name, value, judgement, remedy, details)


def _files_finding(storage: Storage, available: int) -> Finding:
    details = {"files": storage.files, "bytes": storage.bytes, "complete": storage.complete}
    if not storage.files:
        remedy = "Use the data set's own folder."
        return Finding("files", "none of 4 KiB or more", "unknown", remedy, details)
    value = f"{'' if storage.complete else 'more than '}{size(storage.bytes)} in {storage.files:,}"
    value += "; they fit into memory" if _fits(storage, available) else ""
    return Finding("files", value, "good", details=details)


def _failures_finding(failures: tuple[str, ...]) -> Finding:
    more = f", and {len(failures) - NAMED:,} more" if len(failures) > NAMED else ""
    value = f"{', '.join(failures[:NAMED])}{more}"
    remedy = "Permission denied: chmod -R a+rX the folder. Input/output error: the disk or the server fails."
    return Finding("unreadable files", value, "bad", remedy, {"failures": list(failures)})


def _random_finding(
    storage: Storage, rates: Rates, wanted: tuple[float, float], cores: float, available: int
) -> Finding:
    alone, parallel = rates.random, rates.parallel
    by_pillow, by_headrace = wanted
    kind = "whole files" if storage.bytes / storage.files < RANDOM_READ else "128 KiB each"
    value = (
        f"{parallel.reads / parallel.seconds:,.0f}/s with {IN_FLIGHT} in flight"
        f" ({size(parallel.bytes_per_second)}/s, {kind}), {alone.reads / alone.seconds:,.0f}/s one at a time"
        f" ({1000 * alone.seconds / max(1, alone.reads):.2g} ms each)"
    )
    value += "" if rates.direct else "; the page cache was dropped by request, not bypassed"
    details = {
        "rates": asdict(rates),
        "pillow_bytes_per_second": by_pillow,
        "headrace_bytes_per_second": by_headrace,
    }
    if parallel.bytes_per_second >= by_headrace:
        return Finding("random reads", value, "good", details=details)
    slower = parallel.bytes_per_second < by_pillow
    decoder, most = ("Pillow", by_pillow) if slower else ("Headrace", by_headrace)
    remedy = f"{cores:g} cores decode {size(most)}/s with {decoder}: reads are the bottleneck."
    if slower and _fits(storage, available):
        remedy += " Only in the first epoch: the files fit into memory."
        return Finding("random reads", value, "note", remedy, details)
    remedy += f" {COPY_ELSEWHERE if storage.bytes / storage.files >= LARGE_FILE else COPY_HERE}"
    return Finding("random reads", value, "bad" if slower else "note", remedy, details)


def _fits(storage: Storage, available: int) -> bool:
    """Whether all files stay in the page cache from one epoch to the next."""
    return storage.complete and storage.bytes <= FITS * available
