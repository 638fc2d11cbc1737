"""Where training jobs run: a process here, or a Ray cluster."""
