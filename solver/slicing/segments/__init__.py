"""The memory of a segment of the sequence."""
