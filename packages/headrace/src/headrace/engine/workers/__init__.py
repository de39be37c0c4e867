"""The user's Python in worker processes, on public parts of multiprocessing."""
