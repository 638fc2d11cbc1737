"""The server and the client of the environment protocol."""
