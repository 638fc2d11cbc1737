"""Slicing: the best cuts of a sequence of kernels into stages."""
