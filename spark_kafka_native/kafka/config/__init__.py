"""Settings, each declared once: name, parser, bounds, sentence. Opens no file and no socket."""
