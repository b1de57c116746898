"""The command line. Each command is a file of its own; no other part of the package imports this one."""
