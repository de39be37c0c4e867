"""Where the bytes of samples are."""
