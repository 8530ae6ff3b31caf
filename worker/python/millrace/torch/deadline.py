"""A time limit that several waits share, so that they do not add up."""

import time


class Deadline:
    """Ends `seconds` after it was made; at once where they are not over 0."""

    def __init__(self, seconds):
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self):
        """Returns the seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())
