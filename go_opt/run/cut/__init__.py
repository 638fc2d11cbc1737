"""ONNX models of the stages of a plan, and annotated with them. Needs the extra ``run``."""
