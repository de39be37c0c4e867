"""Which paths are URLs of object stores, and what in them names the store."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from headrace.errors import ConfigError

# Of obstore's schemes, those whose store is told by the URL alone.
SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https")


def is_url(path: Any) -> bool:
    """Whether `path` is the URL of an object rather than a file."""
    return isinstance(path, str) and "://" in path and path.split("://", 1)[0].lower() in SCHEMES


def store_and_name(url: str) -> tuple[str, str]:
    """(URL of the store, name of the object in it).

    Raises:
        ConfigError: it names no object, or holds a query.
    """
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise ConfigError(
            f"{url}: a URL with a query can't be read: give the store's credentials by storage_options."
        )
    segments = parts.path.lstrip("/").split("/")
    # obstore's az://account/container: two parts name the store.
    in_store = 1 if parts.scheme in ("az", "azure") else 0
    root = "/".join((f"{parts.scheme}://{parts.netloc}", *segments[:in_store]))
    name = "/".join(segments[in_store:])
    if not parts.netloc or not name:
        raise ConfigError(f"{url!r} names no object of a store: s3://bucket/folder is expected.")
    return root, name
