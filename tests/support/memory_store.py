"""A store in memory, for tests without a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.sources.stores.access import Access
from headrace.sources.stores.client import Answer

ROOT = "s3://bucket"


class MemoryStore:
    """Its objects; `change` is given (name, first byte, bytes) of each answer, and says what is sent."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.change: Callable[[str, int, bytes], bytes] = lambda name, start, data: data
        self.requests = self.nbytes = 0
        self.latency_seconds = 0.001

    def get(self, name: str, start: int = 0, stop: int | None = None) -> Answer:
        self.requests += 1
        data = self.objects[name]
        sent = self.change(name, start, data[start:stop])
        self.nbytes += len(sent)
        return Answer(memoryview(sent), "etag", len(data))

    def head(self, name: str) -> Answer:
        self.requests += 1
        return Answer(memoryview(b""), "etag", len(self.objects[name]))


def store_of(folder: Path) -> MemoryStore:
    """The files below `folder`, by their names in it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return MemoryStore({path.relative_to(folder).as_posix(): path.read_bytes() for path in files})


def access_to(store: MemoryStore, cache: Path, capacity: int = 64 << 20) -> Access:
    """Returns access to `store` as if it were s3://bucket."""
    access = Access(f"{ROOT}/pack", {}, cache, capacity)
    lead_to(store, access)
    return access


def lead_to(store: MemoryStore, access: Access) -> None:
    """Makes `access` read from `store` rather than through obstore."""
    access.records()._readers[ROOT] = store  # type: ignore[assignment]
