"""Settings for all tests: timing never decides, and a failure today is a failure tomorrow."""

from hypothesis import settings

settings.register_profile("bifl", deadline=None, derandomize=True)
settings.load_profile("bifl")
