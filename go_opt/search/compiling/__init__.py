"""When kernels are compiled: before a search, beside it, never inside its time."""
