"""The policy's inputs: features of a graph and a target."""
