"""What the policy sees of a graph and a target."""
