"""The front door."""

from headrace.loader.dataloader import DataLoader

__all__ = ["DataLoader"]
