"""Says why a container is refused (errors_and_limits.md), and which limits the reader has."""

from typing import NamedTuple


class Refused(Exception):
    """Says why a container is refused. `code` is a name of errors_and_limits.md, "Error codes"."""

    code = "invalid_argument"


class Malformed(Refused):
    """Says that the bytes break the format that they name."""

    code = "malformed"


class NonFinite(Malformed):
    """Says that a decoded value is NaN or infinite."""

    code = "non_finite"


class Unsupported(Refused):
    """Says that the bytes may be well formed, and that this reader does not read them."""

    code = "unsupported"


class LimitExceeded(Unsupported):
    """Says that the container is over a limit of this reader."""

    code = "limit_exceeded"


class Limits(NamedTuple):
    """Bounds memory and time. The counts keep a hostile container from claiming work that its bytes do not pay for."""

    container_bytes: int = 1 << 26
    count: int = 1 << 24
    probed_dimension: int = 1 << 24  # a Bloom filter is asked for each index of the dimension


def require(condition: bool, sentence: str) -> None:
    """Raises Malformed with the sentence unless the condition holds."""
    if not condition:
        raise Malformed(sentence)
