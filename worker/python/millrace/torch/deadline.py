"""A time limit that several waits share, so that they do not add up."""

import time

# 30 years. Time-outs of torch's store and of threading overflow at infinity.
NO_LIMIT_S = 1e9


def seconds_of(timeout):
    """Returns a time limit as a number: None is no limit."""
    return NO_LIMIT_S if timeout is None else timeout


class Deadline:
    """Ends `seconds` after it was made, less those that earlier waits have used; at once where none is left.

    seconds  None: no limit.
    """

    def __init__(self, seconds, used=0.0):
        self.seconds = seconds_of(seconds)
        self._end = time.monotonic() + (self.seconds - used)

    def left(self):
        """Returns the seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def call(self, function, *arguments):
        """Returns the result of a call of the session, which may take the seconds that are left.

        Raises  its errors. That of a time-out names the whole limit: the session knows the rest alone.
        """
        try:
            return function(*arguments, timeout=self.left())
        except Exception as error:
            if getattr(error, "code", "") != "timeout":
                raise
            raise type(error)(f"not within {self.seconds:g} s: {error}", "timeout") from error
