"""Plans that run: stage models from a plan."""
