"""This machine as a target, from measured segments of a model. Needs the extra ``run``."""
