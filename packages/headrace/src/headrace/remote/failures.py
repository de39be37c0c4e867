"""Failed requests: the cause, whether and when they are retried, and what the user can do."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from headrace.errors import ConfigError

# Names of obstore's errors that a retry doesn't fix, besides those of ADVICE.
FINAL = {
    "AlreadyExistsError",
    "ConfigError",
    "InvalidPathError",
    "NotImplementedError",
    "NotSupportedError",
    "UnknownConfigurationKeyError",
}
# Statuses below 500 that a retry may fix (RFC 9110, RFC 8470, RFC 6585). AWS uses 400 for some, too: these
# codes of S3 and STS are on its SDKs' list ("Retry behavior" in the SDKs and tools reference guide).
TRANSIENT = {408, 425, 429}
TRANSIENT_CODES = {
    "IDPCommunicationError",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestTimeout",
    "RequestTimeoutException",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
}
# There are too many requests, for the store or for something on the way.
BUSY = {408, 429, 503, 504}

# obstore's words, before and after which come those of its libraries.
STATUS = re.compile(r"status code: (\d{3})\b")
BARE_REDIRECT = "Received redirect without LOCATION"
DEBUG = "\n\nDebug source"
# In what its libraries say.
TIMEOUT = re.compile(r"\bTimedOut\b|kind: Timeout\b|\bos error 110\b")
SYSTEM = re.compile(r'\b(?:message|error): "([^"]+)"')
# As all stores that speak S3, and Azure's, say what is wrong.
XML = re.compile(r"(?:<\?xml[^>]*>\s*)?<Error(?:Response)?\b.*", re.DOTALL)
CODE, MESSAGE = re.compile(r"<Code>([^<]+)</Code>"), re.compile(r"<Message>([^<]+)</Message>")
# Where machines of clouds ask for their credentials.
METADATA = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")

CAUSE_LENGTH = 300

CREDENTIALS = (
    "No credentials were found: give them in the environment or by storage_options; a public bucket takes"
    " storage_options={'skip_signature': True}"
)
REGION = "The bucket is at another endpoint: storage_options={'region': …} or {'endpoint': …}"
REFUSED = (
    "Compare the credentials, and what they allow, with the store's: environment or storage_options; a public"
    " bucket takes storage_options={'skip_signature': True}"
)
CONDITION = "The request had no condition: a proxy on the way answers in the store's place"
DOWN = (
    "The store or the way there is overloaded or down: try later, or for longer by"
    " storage_options={'retry_config': {'max_retries': …}}"
)
NOT_THERE = "Compare bucket and path with what the store holds"
# By the name of obstore's error; a retry fixes none of them.
ADVICE = {
    "FileNotFoundError": NOT_THERE,
    "NotFoundError": NOT_THERE,
    "NotModifiedError": CONDITION,
    "PermissionDeniedError": REFUSED,
    "PreconditionError": CONDITION,
    "UnauthenticatedError": REFUSED,
}
# By the status, of answers for which obstore has only its GenericError.
STATUS_ADVICE = {
    301: REGION,
    302: REGION,
    307: REGION,
    308: REGION,
    400: "Compare region, endpoint and credentials with the store's: environment or storage_options",
    416: "It is shorter than was expected: it was changed or cut. Upload it again",
}
ARCHIVED = "It lies in an archive: have the store restore it first"


@dataclass(frozen=True)
class Failure:
    """Why a request failed.

    Attributes:
        cause: cause in a few words, without a full stop.
        final: whether a retry is useless.
        busy: whether fewer requests at a time may help.
        advice: what to do, without a full stop; empty where nothing is known.
    """

    cause: str
    final: bool
    busy: bool
    advice: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """From what a store's library raised, or a `headrace.remote.client.StoreError`."""
        kind, text = str(getattr(error, "kind", type(error).__name__)), str(error)
        message, _, debug = text.partition(DEBUG)
        code, found = CODE.search(message), STATUS.search(message)
        status = int(found[1]) if found else 0
        late = bool(TIMEOUT.search(debug))
        transient = status in TRANSIENT or (code is not None and code[1] in TRANSIENT_CODES)
        # A failed request for credentials isn't the object's fault; the next one may succeed.
        lacks_credentials = any(place in message for place in METADATA)
        refused = BARE_REDIRECT in message or (300 <= status < 500 and not transient)
        if lacks_credentials:
            advice = CREDENTIALS
        elif BARE_REDIRECT in message:
            advice = REGION
        elif code is not None and code[1] == "InvalidObjectState":
            advice = ARCHIVED
        elif not found and SYSTEM.search(debug):
            advice = "Check the endpoint and the network"
        else:
            temporary = late or transient or status >= 500
            advice = DOWN if temporary else ADVICE.get(kind) or STATUS_ADVICE.get(status, "")
        final = kind in FINAL or kind in ADVICE or (refused and not lacks_credentials)
        return cls(_cause(error, message, debug), final, late or status in BUSY, advice)

    def __str__(self) -> str:
        """Cause and advice."""
        return f"{self.cause}. {self.advice}" if self.advice else self.cause


def _cause(error: BaseException, message: str, debug: str) -> str:
    code, detail = CODE.search(message), MESSAGE.search(message)
    if code is not None:
        words = code[1] if detail is None else f"{code[1]}: {detail[1]}"
        message = XML.sub(lambda _: words, message)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = lines[0].rstrip(" .:") if lines else type(error).__name__
    system = SYSTEM.search(debug)
    if system is not None and system[1] not in text:
        text += f": {system[1]}"
    elif TIMEOUT.search(debug):
        text += ": it took too long"
    return text if len(text) <= CAUSE_LENGTH else f"{text[:CAUSE_LENGTH]}…"


@dataclass(frozen=True)
class Retry:
    """Exponential backoff with full jitter (Brooker: "Exponential Backoff And Jitter", AWS, 2015).

    Attributes:
        tries: number of attempts of one request, the first included.
        first_seconds: longest wait before the second attempt; before each further one, `base` times as long.
        most_seconds: limit of all waits.
    """

    tries: int = 8
    first_seconds: float = 0.1
    base: float = 2.0
    most_seconds: float = 10.0

    def wait(self, failed: int, draw: random.Random) -> float:
        """Seconds before the next attempt after `failed` ones, 1 or more."""
        return draw.uniform(0.0, min(self.most_seconds, self.first_seconds * self.base ** (failed - 1)))

    def options(self) -> dict[str, Any]:
        """As obstore's `retry_config`."""
        first, most = timedelta(seconds=self.first_seconds), timedelta(seconds=self.most_seconds)
        backoff = {"init_backoff": first, "max_backoff": most, "base": self.base}
        return {"max_retries": self.tries - 1, "backoff": backoff}

    @classmethod
    def from_options(cls, options: Mapping[str, Any] | None) -> Retry:
        """From obstore's `retry_config`: `max_retries`, and `backoff` with `init_backoff`, `max_backoff` and
        `base`; what isn't given keeps its default.

        Raises:
            ConfigError: another key, or a value that isn't one.
        """
        given = dict(options or {})
        backoff = dict(given.pop("backoff", None) or {})
        retries = given.pop("max_retries", cls.tries - 1)
        first = backoff.pop("init_backoff", cls.first_seconds)
        most, base = backoff.pop("max_backoff", cls.most_seconds), backoff.pop("base", cls.base)
        if given or backoff:
            raise ConfigError(
                f"retry_config: {', '.join([*given, *backoff])} isn't known. It takes max_retries, and"
                " backoff with init_backoff, max_backoff and base."
            )
        if not isinstance(retries, int) or retries < 0:
            raise ConfigError(f"retry_config: max_retries ({retries!r}) must be an int, 0 or more.")
        return cls(retries + 1, _seconds(first), float(base), _seconds(most))


def _seconds(value: Any) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, (int, float)) or seconds < 0:
        raise ConfigError(f"retry_config: {value!r} must be a timedelta or seconds, 0 or more.")
    return float(seconds)
