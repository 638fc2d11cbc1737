"""The parts of the JAX importer; its door is :func:`go_opt.frontends.from_jax`."""
