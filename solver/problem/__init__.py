"""The placement problem: units, kernel sequences and the user's constraints."""
