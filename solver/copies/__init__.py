"""Relays: copies of tensors on chips between the one that makes them and those that read them."""
