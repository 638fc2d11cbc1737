"""This machine as a target: what segments of a model cost on it. Needs the extra ``run``."""
