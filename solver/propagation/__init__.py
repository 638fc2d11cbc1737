"""Domains, propagators and the search that uses them; FIX and SAMPLE."""
