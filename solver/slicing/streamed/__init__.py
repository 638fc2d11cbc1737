"""Slicing that counts streamed weights."""
