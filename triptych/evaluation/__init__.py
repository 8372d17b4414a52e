"""Measure a space: retrieval, classification, geometry, localisation, and comparisons with intervals."""
