"""Decodes the outputs of the policy into plans."""
