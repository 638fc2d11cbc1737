"""Methods that look at placements one by one: all of them, or the neighbours of the best one."""
