"""Headrace: a drop-in for torch.utils.data.DataLoader that runs image pipelines in native code."""
