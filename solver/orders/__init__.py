"""Orders of the kernels: fixed orders, random orders, and the search over orders."""

from go_opt.solver.orders.orders import fixed_orders, kernel_features, random_orders

__all__ = ["fixed_orders", "kernel_features", "random_orders"]
