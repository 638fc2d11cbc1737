"""From what the policy says to plans."""
