"""What is decided: which target a request goes to, and whose turn it is."""
