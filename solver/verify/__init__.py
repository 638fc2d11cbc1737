"""The verifier: every rule checked from its definition, in plain NumPy."""
