"""What people look at. It renders snapshots and changes nothing of the gateway."""
