"""Spaces that need no training: which are known, which are ready on this machine, and which one is the default."""
