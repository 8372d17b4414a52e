"""Find the pairs of a manifest that are probably wrong, and propose replacements."""
