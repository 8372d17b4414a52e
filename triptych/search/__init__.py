"""A user's files, embedded once and searched by text, sound or picture."""
