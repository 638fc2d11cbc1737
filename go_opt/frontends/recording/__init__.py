"""What importers record of a program that they walk."""
