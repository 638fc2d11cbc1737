"""The parts of the ONNX importer, :func:`go_opt.from_onnx`."""
