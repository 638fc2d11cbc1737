"""What is placed: units, their traffic and sequence, and what the user asks of them."""
