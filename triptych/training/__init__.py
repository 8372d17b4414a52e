"""Train a space from a recipe and manifests."""
