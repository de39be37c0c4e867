"""How many workers of which kind, and how many batches ahead: advice from measurements."""
