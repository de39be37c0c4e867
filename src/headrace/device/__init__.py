"""The way to the device: copies beside the training step, and what is done to a batch once it is there."""
