"""The parts of the JAX importer, :func:`go_opt.from_jax`."""
