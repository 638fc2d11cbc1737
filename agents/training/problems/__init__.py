"""What a policy is trained on: graphs, targets, and what evaluates its plans."""
