"""How the graphs of the zoo were built."""
