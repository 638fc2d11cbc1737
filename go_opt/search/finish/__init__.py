"""What a search does with its best plan at the end."""
