"""The command line ``go-opt``."""

from go_opt.cli.app import main

__all__ = ["main"]
