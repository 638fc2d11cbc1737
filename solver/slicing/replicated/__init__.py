"""Slicing into replicated stages."""
