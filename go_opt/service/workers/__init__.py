"""Worker processes for searches."""
