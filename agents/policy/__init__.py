"""The policy: its network, its parameters, and its file."""
