"""The places that native code reads samples from."""

from headrace.sources.folder import ImageSource
from headrace.sources.pack import PackSource

# Both have labels, len(), path(i) and label(i), open(i) for Pillow, take() and count_extensions().
Source = ImageSource | PackSource
