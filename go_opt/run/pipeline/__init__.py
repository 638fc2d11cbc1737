"""Stages that run as processes of ONNX Runtime, connected by shared memory. Needs the extra ``run``."""
