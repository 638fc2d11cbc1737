"""Graphs and plans as JSON and as protocol buffers."""
