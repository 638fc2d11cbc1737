"""The client's calls answered in this process."""
