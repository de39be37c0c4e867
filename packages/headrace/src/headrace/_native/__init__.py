"""The native library: `ffi` is the only file of this package that knows ctypes."""
