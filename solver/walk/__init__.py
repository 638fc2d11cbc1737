"""The walk: a policy that decides along an order where to go on to the next chip."""
