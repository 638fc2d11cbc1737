"""Exports plans as files for other tools. Needs the extra ``run``."""
