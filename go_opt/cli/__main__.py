"""``python -m go_opt.cli`` runs the command line from a checkout."""

from go_opt.cli import main

main()
