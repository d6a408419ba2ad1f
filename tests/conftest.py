"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A time limit for an example measures how busy the machine is.
settings.register_profile("pharos", deadline=None)
settings.load_profile("pharos")
