"""Addresses, channels, credentials and retries."""
