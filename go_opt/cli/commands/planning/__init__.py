"""The commands that say how large a package a model needs."""
