"""Which ops are one kernel, and in which order kernels run."""
