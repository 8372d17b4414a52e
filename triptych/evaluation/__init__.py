"""How well a space finds what belongs together."""
