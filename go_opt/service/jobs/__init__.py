"""Training as long-running jobs: their store, what runs them, and the process each runs in."""
