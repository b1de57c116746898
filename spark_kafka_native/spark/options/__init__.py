"""Every option once: name, type, default, bounds; parsing, errors and docs/options.md come from here."""
