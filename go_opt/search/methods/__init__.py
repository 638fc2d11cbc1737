"""The methods of the portfolio, and what they propose."""
