"""Helpers for user tests: what was drawn for a sample, and the sample as torchvision makes it from that.

>>> import headrace.testing
>>> loader = headrace.DataLoader(ImageFolder(...), batch_size=8, seed=0)  # doctest: +SKIP
>>> images, labels = next(iter(loader))  # doctest: +SKIP
>>> torch.equal(images[0], headrace.testing.replay(loader, 0))  # doctest: +SKIP
True
"""

from headrace.testing.replay import draws, replay

__all__ = ["draws", "replay"]
