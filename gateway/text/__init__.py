"""Which region a client shall use, asked with telnet."""
