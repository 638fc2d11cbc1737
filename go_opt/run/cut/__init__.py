"""ONNX models of a plan's stages, and models annotated with stages. Needs the extra ``run``."""
