"""Settings for properties of arithmetic."""

from hypothesis import settings

few = settings(max_examples=25, deadline=None)
