"""From a recipe and pairs to a space."""
