"""What answers the calls of the protocol."""
