"""obstore, as the rest uses it: URLs, options, and reading from one store."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from headrace.errors import ConfigError, RemoteError
from headrace.sources.stores.failures import explained

# Those of obstore's schemes whose store is named by the URL alone.
SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "http", "https")


def is_url(path: Any) -> bool:
    """Returns whether `path` is the URL of an object rather than a file."""
    return isinstance(path, str) and "://" in path and path.split("://", 1)[0].lower() in SCHEMES


def store_and_name(url: str) -> tuple[str, str]:
    """(URL of the store, name of the object in it). Raises ConfigError if it names none, or has a query."""
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


# Keys of `storage_options` that aren't a store's own settings.
CLIENT, PROVIDER = "client_options", "credential_provider"

# A request that takes longer, or receives nothing for so long, is retried; a range is a few megabytes, and
# may share a slow line with many others.
TIMEOUTS = {"timeout": "300s", "read_timeout": "15s", "connect_timeout": "5s"}


class Answer(NamedTuple):
    """The answer to a request.

    Attributes:
        data: the bytes.
        etag: the object's ETag, or None if the store gives none.
        size: the size of the whole object, in bytes.
    """

    data: memoryview
    etag: str | None
    size: int

    @property
    def version(self) -> str:
        """The version of the object: its ETag, or its size if it has none."""
        return self.etag or str(self.size)


class Reader:
    """Reads from the store at the URL `root`, in any thread. Raises ConfigError if obstore isn't installed,
    or refuses the options.

    Attributes:
        requests: the number of requests that succeeded.
        nbytes: the number of bytes that they brought.
        latency_seconds: the running mean of the seconds from a request to its first byte, retries included.
    """

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self._root = root.rstrip("/")
        self._store = open_store(root, store_arguments(root, options))
        self._lock = threading.Lock()
        self.requests = self.nbytes = 0
        self.latency_seconds = 0.0

    def get(self, name: str, start: int = 0, stop: int | None = None) -> Answer:
        """Reads bytes `start` to `stop` - 1 of an object, or all of it if `stop` is None. Raises RemoteError,
        which names URL, range and cause."""
        import obstore

        url = f"{self._root}/{name}"
        what = url if stop is None else f"bytes {start:,} to {stop - 1:,} of {url}"
        started = time.perf_counter()
        try:
            result = obstore.get(self._store, name, options={} if stop is None else {"range": (start, stop)})
            latency = time.perf_counter() - started
            data = memoryview(result.bytes())
        except Exception as error:  # obstore's own errors have no common builtin
            raise RemoteError(f"{what} can't be read: {explained(error)}") from error
        size = result.meta["size"]
        expected = (size if stop is None else stop) - start
        if len(data) != expected:
            raise RemoteError(f"{what} can't be read: {len(data):,} bytes came in place of {expected:,}")
        self._note(latency, len(data))
        return Answer(data, result.meta["e_tag"], size)

    def head(self, name: str) -> Answer:
        """Asks for size and ETag of an object. Raises RemoteError."""
        import obstore

        started = time.perf_counter()
        try:
            meta = obstore.head(self._store, name)
        except Exception as error:
            # The answer to HEAD has no body, which would hold the reason (RFC 9110, 9.3.2).
            self.get(name, 0, 1)
            raise RemoteError(
                f"size and ETag of {self._root}/{name} can't be read: {explained(error)}"
            ) from error
        self._note(time.perf_counter() - started, 0)
        return Answer(memoryview(b""), meta["e_tag"], meta["size"])

    def _note(self, latency: float, nbytes: int) -> None:
        with self._lock:
            self.requests += 1
            self.nbytes += nbytes
            self.latency_seconds += (latency - self.latency_seconds) / min(self.requests, 10)


# Whether this process used obstore, and whether it was forked from one that did.
_used = _forked = False


def check_process() -> None:
    """Raises ConfigError in a process that was forked after stores were used: obstore's threads don't exist
    in it."""
    if _forked:
        raise ConfigError(
            "Stores can't be used by a process that was forked after they were used: the threads of the"
            " store's library don't exist in it. Start it by multiprocessing_context='forkserver' or 'spawn'"
            " (the DataLoader's argument)."
        )


def _note_fork() -> None:
    global _forked
    _forked = _forked or _used


os.register_at_fork(after_in_child=_note_fork)


def open_store(root: str, arguments: Mapping[str, Any]) -> Any:
    """obstore's store at `root`. Raises ConfigError."""
    global _used
    check_process()
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise ConfigError(
            f"{root}: reading from stores needs obstore: pip install 'headrace[remote]'."
        ) from error
    _used = True
    try:
        return from_url(root, **arguments)
    except Exception as error:  # obstore's own errors have no common builtin
        raise ConfigError(f"{root}: the store can't be used with these storage_options: {error}") from error


def store_arguments(root: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of obstore's `from_url`: the user's, and what they leave open."""
    arguments = dict(options)
    client = {**TIMEOUTS, **(arguments.get(CLIENT) or {})}
    # An http:// endpoint was chosen deliberately.
    if root.startswith("http://") or (endpoint_of(root, options) or "").startswith("http://"):
        client.setdefault("allow_http", True)
    arguments[CLIENT] = client
    if PROVIDER not in arguments and root.startswith(("s3://", "s3a://")):
        provider = _profile(arguments)
        if provider is not None:
            arguments[PROVIDER] = provider
    return arguments


def endpoint_of(root: str, options: Mapping[str, Any]) -> str | None:
    """The store's endpoint by the options or the environment, or None if its URL names it."""
    for key, value in options.items():
        if key.lower().removeprefix("aws_").removeprefix("azure_") in ("endpoint", "endpoint_url"):
            return str(value)
    if root.startswith(("s3://", "s3a://")):
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        return next((os.environ[name] for name in names if os.environ.get(name)), None)
    return None


def _profile(arguments: Mapping[str, Any]) -> Any:
    """AWS's files of profiles, which obstore doesn't read itself: through boto3, if that is installed."""
    given = {key.lower().removeprefix("aws_") for key in arguments}
    if given & {"access_key_id", "skip_signature"} or os.environ.get("AWS_ACCESS_KEY_ID"):
        return None
    files = os.environ.get("AWS_SHARED_CREDENTIALS_FILE"), Path.home() / ".aws" / "credentials"
    if not os.environ.get("AWS_PROFILE") and not any(file and Path(file).is_file() for file in files):
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        return None
    return Boto3CredentialProvider()
