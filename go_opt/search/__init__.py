"""The search for a plan: the portfolio of methods, its policy, its answer."""
