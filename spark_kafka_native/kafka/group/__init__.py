"""Consumer groups: what a group has committed."""
