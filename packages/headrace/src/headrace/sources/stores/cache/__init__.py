"""A cache of records on local disk, bounded in bytes, that all processes of a node share."""

from headrace.sources.stores.cache.cache import Cache
from headrace.sources.stores.cache.records import CacheStats, Claim, Record

__all__ = ["Cache", "CacheStats", "Claim", "Record"]
