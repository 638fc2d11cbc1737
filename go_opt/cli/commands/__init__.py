"""The commands."""

INTERRUPTED = 130  # the exit code: 128 + SIGINT, as shells report it
