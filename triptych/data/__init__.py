"""Pairs to batches: manifests, the loader, and a made world with known answers."""
