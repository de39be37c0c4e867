"""Packs and indexes: files made from the user's data, or for it, so that reading it costs less."""
