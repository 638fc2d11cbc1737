"""Plans as files that other tools run. Needs the extra ``run``."""
