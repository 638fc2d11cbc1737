"""A target's true figures from measured plans: what to measure, and the target that explains it."""
