"""Admission, limits, cancellation and answers of calls."""
