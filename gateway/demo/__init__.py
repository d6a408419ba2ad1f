"""A first look without a GPU: real engines out of the package index, the gateway in front, one chat."""
