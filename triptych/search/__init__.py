"""Collections of embedded files and texts, and the search over them."""
