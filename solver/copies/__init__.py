"""Relays and clones: copies of tensors and of ops on other chips."""
