"""What the refinement knows of a graph: floors of work, traffic and memory."""
