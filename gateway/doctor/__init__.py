"""The doctor: what Pharos can read of each engine, and what will surprise whoever runs it."""
