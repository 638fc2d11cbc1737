"""Every plan of a tiny instance."""
