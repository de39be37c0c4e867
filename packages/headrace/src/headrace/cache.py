"""The cache of records on local disk, for use on its own. See docs/cache.md."""

from headrace.sources.stores.cache import Cache, CacheStats, Claim, Record

__all__ = ["Cache", "CacheStats", "Claim", "Record"]
