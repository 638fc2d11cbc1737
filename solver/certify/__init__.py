"""Lower bounds, and the refinement that raises them until the plan is proven optimal."""
