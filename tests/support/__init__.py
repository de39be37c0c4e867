"""Support for tests: data from fixed seeds, datasets that spawned workers can import, servers, stand-ins.

pytest puts `tests` on the path (pyproject.toml), so that tests import `support.jpegs` and so on.
"""
