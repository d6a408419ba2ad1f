"""What is known of the engines: backends, their views, and the scrapers that refresh them."""
