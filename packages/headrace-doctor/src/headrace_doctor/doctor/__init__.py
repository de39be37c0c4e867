"""Opinions on what was measured: findings, a diagnosis, advice; no measuring here."""
