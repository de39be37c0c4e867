"""Numbers about the machine; no opinions."""
