"""Settings of these tests."""

from hypothesis import settings

# How long an example takes says nothing on a machine that does other things too.
settings.register_profile("midrun", deadline=None)
settings.load_profile("midrun")
