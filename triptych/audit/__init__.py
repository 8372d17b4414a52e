"""Which pairs are probably wrong, and what would fit better."""
