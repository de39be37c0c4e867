"""obstore, as the rest uses it: URLs, options, and two kinds of request to one store."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from headrace.errors import ConfigError
from headrace.remote.failures import Failure
from headrace.remote.loop import loop

# Of obstore's schemes, those whose store is named by the URL alone.
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


# Of `storage_options`, what isn't a store's own setting.
CLIENT, RETRY, PROVIDER = "client_options", "retry_config", "credential_provider"

# A request that takes longer, or receives nothing for so long, is retried; a range is a few megabytes, and
# may share a slow line with many others.
TIMEOUTS = {"timeout": "300s", "read_timeout": "15s", "connect_timeout": "5s"}


# obstore's messages where the answer is the whole object: of S3 and compatible stores, and of plain HTTP.
NO_RANGE = ("non-partial response", "Range request not supported")
# The size of an object, as a multiple of the requested part, up to which receiving all of it is accepted.
MOST_WASTE = 2


class StoreError(Exception):
    """What a store's library raised in another process, or would.

    Attributes:
        kind: the name of its class.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Answer(NamedTuple):
    """What a request brought.

    Attributes:
        data: the bytes.
        etag: the object's ETag; None: the store gives none.
        size: the size of the whole object, in bytes.
        latency, body: the seconds until the first byte, and from there to the last.
    """

    data: Any
    etag: str | None
    size: int
    latency: float
    body: float

    @property
    def version(self) -> str:
        """Of the object: its ETag, or its size where it has none."""
        return self.etag or str(self.size)


class ObstoreClient:
    """Reads from one store through obstore, in this process. Raises what obstore raises.

    Args:
        root: URL of the store.
        options: see `headrace.PackedDataset`.

    Raises:
        ConfigError: obstore isn't installed, or refuses the options.
    """

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self._store = open_store(root, store_arguments(root, options))
        loop().last = _await_answer

    async def get(self, name: str, start: int, stop: int | None) -> Answer:
        """Bytes `start` to `stop` - 1 of an object; None: all of it."""
        started = time.perf_counter()
        options = {} if stop is None else {"range": (start, stop)}
        try:
            result = await self._store.get_async(name, options=options)
        except Exception as error:
            if stop is None or not any(words in str(error) for words in NO_RANGE):
                raise
            return await self._part_of_all(name, start, stop)
        first = time.perf_counter()
        data = await result.bytes_async()
        meta = result.meta
        return Answer(data, meta["e_tag"], meta["size"], first - started, time.perf_counter() - first)

    async def _part_of_all(self, name: str, start: int, stop: int) -> Answer:
        """From a store that answers with the whole object: some do where the range is all of it."""
        started = time.perf_counter()
        result = await self._store.get_async(name)
        meta, first = result.meta, time.perf_counter()
        if meta["size"] > MOST_WASTE * (stop - start):
            text = (
                "the server ignores ranges: it sends the whole object where a part is requested. Serve it by"
                " one that answers them (RFC 9110, 14.2)"
            )
            raise StoreError("NotSupportedError", text)
        data = memoryview(await result.bytes_async())[start:stop]
        return Answer(data, meta["e_tag"], meta["size"], first - started, time.perf_counter() - first)

    async def head(self, name: str) -> Answer:
        """Nothing of an object but its size and ETag."""
        started = time.perf_counter()
        try:
            meta = await self._store.head_async(name)
        except Exception as error:
            if Failure.of(error).final:
                # The answer to HEAD has no body, which would hold the reason (RFC 9110, 9.3.2).
                await self._store.get_async(name, options={"range": (0, 1)})
            raise
        return Answer(b"", meta["e_tag"], meta["size"], time.perf_counter() - started, 0.0)


async def _await_answer() -> None:
    """Waits for obstore's answer to a request that comes after all others. A thread has no name before it
    runs, so that on a busy machine `await_store_threads` might not find those that obstore has just started,
    and that are about to take up the other requests."""
    from obstore.store import MemoryStore

    await MemoryStore().put_async("last", b"")


def open_store(root: str, arguments: Mapping[str, Any]) -> Any:
    """obstore's store at `root`. Raises ConfigError."""
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise ConfigError(
            f"{root}: reading from stores needs obstore: pip install 'headrace[remote]'."
        ) from error
    try:
        return from_url(root, **arguments)
    except Exception as error:  # obstore's own errors have no common builtin
        raise ConfigError(f"{root}: the store can't be used with these storage_options: {error}") from error


def store_arguments(root: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of obstore's `from_url`: the user's, and what they leave open."""
    arguments = {key: value for key, value in options.items() if key != RETRY}
    client = {**TIMEOUTS, **(arguments.get(CLIENT) or {})}
    # An http:// endpoint was chosen deliberately.
    if root.startswith("http://") or (endpoint_of(root, options) or "").startswith("http://"):
        client.setdefault("allow_http", True)
    arguments[CLIENT] = client
    # `headrace.remote.reader` retries. obstore 0.12 would retry 408, 429, 5xx and bodies that are cut short,
    # but not what S3 refuses for the moment with 400, or ranges other than requested; a retry that waits
    # would keep its place among the requests in flight; and obstore neither counts its retries (they are in
    # `RemoteStats`) nor shows the answers after which `Limit` halves.
    arguments[RETRY] = {"max_retries": 0}
    if PROVIDER not in arguments and root.startswith(("s3://", "s3a://")):
        provider = _profile(arguments)
        if provider is not None:
            arguments[PROVIDER] = provider
    return arguments


def endpoint_of(root: str, options: Mapping[str, Any]) -> str | None:
    """The store's endpoint by the options, or by the environment; None: its URL names it."""
    for key, value in options.items():
        if key.lower().removeprefix("aws_").removeprefix("azure_") in ("endpoint", "endpoint_url"):
            return str(value)
    if root.startswith(("s3://", "s3a://")):
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        return next((os.environ[name] for name in names if os.environ.get(name)), None)
    return None


def check_options(path: Any, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """`options` as a dict of their own. Raises ConfigError where they are given for a local path."""
    if options and not is_url(path):
        raise ConfigError(f"storage_options are for URLs, and {path!r} isn't one.")
    return dict(options or {})


def _profile(arguments: Mapping[str, Any]) -> Any:
    """AWS's files of profiles, which obstore doesn't read itself: through boto3, where that is installed."""
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
