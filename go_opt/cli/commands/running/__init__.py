"""The commands that take a plan to where it runs."""
