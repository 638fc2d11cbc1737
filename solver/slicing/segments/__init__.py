"""The slicing problem: costs, relays and memory of the segments of a kernel sequence."""
