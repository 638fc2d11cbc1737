"""The environment protocol: its server and its client."""
