"""Messages of the protocol and the values they stand for."""
