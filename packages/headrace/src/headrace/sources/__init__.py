"""The places that hold the bytes of samples."""
