"""Files to arrays: what a user has on disk, decoded within limits."""
