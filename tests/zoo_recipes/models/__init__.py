"""Models of the zoo that no library ships, written from their papers in Flax.

Only the recipes import them: they load JAX and flax.
"""
