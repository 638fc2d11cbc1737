"""Clients of the service."""
