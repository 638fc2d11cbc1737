"""Copies in a plan: relays and clones, and stages of several chips."""
