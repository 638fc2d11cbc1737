"""Files, cores, memory of the process, units and the version."""
