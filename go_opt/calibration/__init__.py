"""Calibrates a target: chooses plans to measure, and fits the target to the measurements."""
