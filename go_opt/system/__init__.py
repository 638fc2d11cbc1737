"""Files, cores and memory of the process."""
