"""Domains, propagators and the search over them; FIX and SAMPLE."""
