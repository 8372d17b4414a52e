"""A run on one page: everything measured, drawn, shown and played in a single HTML file."""
