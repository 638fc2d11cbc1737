"""The services that answer the calls of the protocol."""
