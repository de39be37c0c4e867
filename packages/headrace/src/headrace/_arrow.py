"""pyarrow, in which indexes are kept: an optional dependency, imported where an index is read or written."""

from headrace.errors import ConfigError

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise ConfigError("Packs and indexes need pyarrow: pip install 'headrace[packs]'.") from error

__all__ = ["pa", "pc"]
