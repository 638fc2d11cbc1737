"""The commands of the command line."""

INTERRUPTED = 130  # the exit code: 128 + SIGINT, as shells report it
