"""Runs a native plan: slots of memory, native batches in flight, and Pillow for the files that it takes."""
