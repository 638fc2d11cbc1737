"""The commands that make target files."""
