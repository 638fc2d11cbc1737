"""Records the ops of a program while an importer walks it."""
