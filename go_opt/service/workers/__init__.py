"""Processes that search."""
