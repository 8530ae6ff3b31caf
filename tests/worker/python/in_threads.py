"""Runs the workers of a test in threads of one process."""

import threading

TIMEOUT_S = 60


def in_threads(body, count):
    """Returns the results of body(0) to body(count - 1), which run at the same time.

    Raises   the first exception of a body; else TimeoutError, where a body still runs after TIMEOUT_S. Such a thread does not
             keep the process from its end.
    """
    results, errors = [None] * count, []

    def run(number):
        try:
            results[number] = body(number)
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    if errors:
        raise errors[0]
    running = [number for number, thread in enumerate(threads) if thread.is_alive()]
    if running:
        raise TimeoutError(f"threads {running} still run after {TIMEOUT_S} s")
    return results
