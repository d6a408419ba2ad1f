"""The same conversations through Pharos and through a round-robin proxy, over the same real engines."""
