"""Packs and indexes: files made from the user's data, or for it, so that reading it costs less."""

# Bytes: large enough to be read at a disk's full rate, small enough that an interruption costs seconds.
DEFAULT_SHARD_SIZE = 500_000_000
