"""Which ops may be split, and ways to split them."""
