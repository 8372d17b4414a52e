"""User interfaces: command line, terminal output, server and web page."""
