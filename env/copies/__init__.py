"""Copies in a plan: relays, parts of split ops, and stages of several chips."""
