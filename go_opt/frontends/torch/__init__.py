"""The parts of the PyTorch importer, :func:`go_opt.from_torch`."""
