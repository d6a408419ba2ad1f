"""What Pharos counts and times of itself, as the page that Prometheus reads."""
