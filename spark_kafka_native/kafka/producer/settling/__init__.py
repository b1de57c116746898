"""How a batch ends: delivered, given up, spilled or split, and who hears of it."""
