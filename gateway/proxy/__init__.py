"""The path of a request, one direction: read, understand, pick, forward, finish."""
