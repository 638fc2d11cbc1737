"""The parts of the PyTorch importer; its door is :func:`go_opt.frontends.from_torch`."""
