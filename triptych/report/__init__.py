"""Measure a run, and write the results with figures and examples to a single HTML file."""
