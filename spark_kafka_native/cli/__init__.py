"""The command line. Each command is a file of its own; nothing else in the package imports from here."""
