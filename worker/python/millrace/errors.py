"""The error of the worker library."""

from typing import Tuple, Type


class JobError(RuntimeError):
    """An error of a job: its code, the origin of its cause, and a sentence with the remedy.

    code    as "shard_lost": invalid_argument, malformed, unsupported, limit_exceeded, non_finite, version_mismatch,
            job_mismatch, identity_in_use, not_a_member, stale, conflict, shard_map_mismatch, shard_lost, unavailable,
            timeout, io, internal, unauthenticated. Codes never change.
    origin  "worker": this worker's options, files, callbacks and arguments. "job": the shards, other workers, a time
            limit.
    """

    def __init__(self, sentence: str, code: str = "internal", origin: str = "job") -> None:
        super().__init__(sentence)
        self.code = code
        self.origin = origin

    def __reduce__(self) -> Tuple[Type["JobError"], Tuple[str, str, str]]:
        return JobError, (str(self), self.code, self.origin)
