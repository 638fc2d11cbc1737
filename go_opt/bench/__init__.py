"""The portfolio and its rivals on many graphs: matches, the processes that play them, standings."""
