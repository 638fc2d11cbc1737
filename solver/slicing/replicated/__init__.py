"""Slicing into stages that run on several chips in turn."""
