"""How a batch ends: delivered, given up, spilled or split; and how its end is reported."""
