"""The parts of the ONNX importer; its door is :func:`go_opt.frontends.from_onnx`."""
