"""The gateway's core on virtual time, over models of engines."""
