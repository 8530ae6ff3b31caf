"""Runs the workers of a test in threads of one process."""

import threading

TIMEOUT_S = 60


def in_threads(body, count):
    """Runs body(0) to body(count - 1) at the same time; the first exception is the caller's."""
    errors = []

    def run(number):
        try:
            body(number)
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    if errors:
        raise errors[0]
