"""What commands read."""
