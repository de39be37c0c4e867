"""How many workers of which kind, how many batches ahead: chosen by measurements, corrected by them."""
