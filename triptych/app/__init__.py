"""What a person touches: thin layers over the package."""
