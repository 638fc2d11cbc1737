"""The refinement's view of a graph: lower bounds on work, traffic and memory."""
