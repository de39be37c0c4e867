"""Failed requests: the cause in the store's words, and what the user can do."""

from __future__ import annotations

REFUSED = (
    "Compare the credentials, and what they allow, with the store's: environment or storage_options; a public"
    " bucket takes storage_options={'skip_signature': True}"
)
NOT_THERE = "Compare bucket and path with what the store holds"
CONDITION = "The request had no condition: a proxy on the way answers in the store's place"
# By the name of obstore's error; the same request won't succeed later.
FINAL = {
    **dict.fromkeys(("PermissionDeniedError", "UnauthenticatedError"), REFUSED),
    **dict.fromkeys(("FileNotFoundError", "NotFoundError"), NOT_THERE),
    **dict.fromkeys(("NotModifiedError", "PreconditionError"), CONDITION),
    **dict.fromkeys(("AlreadyExistsError", "InvalidPathError"), ""),
    **dict.fromkeys(("NotImplementedError", "NotSupportedError"), ""),
}
OTHER = (
    "The store or the way there is overloaded or down, or endpoint, region or credentials are wrong, or the"
    " object is shorter than was expected: compare them with storage_options, or try later"
)
# Before what obstore prints for its own developers.
DEBUG = "\n\nDebug source"
MOST_LETTERS = 500


def may_pass(error: BaseException | None) -> bool:
    """Returns whether the same request may succeed later, because a store is overloaded, say."""
    return error is not None and type(error).__name__ not in FINAL


def explained(error: BaseException) -> str:
    """Cause and advice for what obstore raised, without a full stop."""
    text = " ".join(str(error).partition(DEBUG)[0].split()).rstrip(" .:") or type(error).__name__
    if len(text) > MOST_LETTERS:
        text = f"{text[:MOST_LETTERS]}…"
    advice = FINAL.get(type(error).__name__, OTHER)
    return f"{text}. {advice}" if advice else text
