"""What all searches of one request share."""
