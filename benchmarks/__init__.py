"""What Pharos costs, measured on this machine: `make bench`. Reported, never asserted."""
