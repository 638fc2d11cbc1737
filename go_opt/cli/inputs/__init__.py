"""Reads the inputs of commands."""
