"""How a space computes embeddings: on which device, in which precision, and with which runtime."""
