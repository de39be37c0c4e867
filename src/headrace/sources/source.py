"""The places that native code reads samples from."""

from headrace.sources.folder import ImageSource
from headrace.sources.pack import PackSource

# Both have labels, len(), path(i) and label(i), open(i) for Pillow, take() and count_extensions().
Source = ImageSource | PackSource


def is_remote(source: Source) -> bool:
    """Whether the bytes of `source` have to be fetched: it then is a `headrace.sources.remote_pack`'s."""
    return hasattr(source, "begin")
