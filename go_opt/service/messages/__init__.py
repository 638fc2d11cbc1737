"""Conversions between messages of the protocol and go-opt's values."""
