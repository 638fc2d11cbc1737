"""What learns: the policy that proposes plans, and its training."""
