"""The way to the device: copies overlapped with the training step, and what is done to batches there."""
