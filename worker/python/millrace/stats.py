"""Statistics of a session. Names, order and meanings are those of the C++ header `millrace/stats.h`."""

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Tuple, cast


class _Record:
    def as_dict(self) -> Dict[str, Any]:
        """Returns the fields as a dictionary, which json.dumps() takes."""
        return asdict(cast(Any, self))


@dataclass(frozen=True)
class TensorStats(_Record):
    """Counters of one tensor. Tensors of one bucket share its counts, which the first of them reports."""

    name: str
    steps_pushed: int
    steps_applied: int
    entries_sent: int
    entries_sent_last: int
    entries_received: int
    entries_returned: int
    false_positives: int
    non_finite_dropped: int
    entries_discarded: int
    discarded: float
    residual_norm: float
    dropped_error: float
    dropped_magnitude: float
    codec_choice: str


@dataclass(frozen=True)
class AuditStats(_Record):
    """Sums of a job with option `audit`: entered = residual + in_flight + carried + lost."""

    audits: bool
    entered: float
    residual: float
    in_flight: float
    carried: float
    lost: float
    rounded_off: float
    imbalance: float
    checks: int


@dataclass(frozen=True)
class SwitchStats(_Record):
    """Counters of the datagrams of path switch."""

    used: bool
    at_switch: bool
    turns: int
    resends: int
    timeouts: int
    fallbacks: int
    came_back: int
    congestion_marks: int
    packets_lost: int
    events: Dict[str, int]


@dataclass(frozen=True)
class Stats(_Record):
    """Sums since the session connected. Times are in seconds."""

    bytes_up: int
    bytes_down: int
    payload_bytes_up: int
    payload_bytes_down: int
    raw_bytes_up: int
    raw_bytes_down: int
    history_bytes_saved: int
    history_shortened: int
    history_refused: int
    dense_bytes: int
    rounds: int
    resends: int
    reconnects: int
    duplicates: int
    updates_dropped_stale: int
    updates_dropped_malformed: int
    messages_dropped_unexpected: int
    not_counted: int
    returns: int
    returns_asked_for: int
    lost_save_too_old: float
    lost_off_log: float
    lost_cut: float
    unreturnable: float
    entries_void: int
    time_in_communication_s: float
    time_blocked_s: float
    bytes_to_devices: int
    bytes_from_devices: int
    device_memory_bytes: int
    audit: AuditStats
    by_switch: SwitchStats
    tensors: List[TensorStats]


@dataclass(frozen=True)
class SessionStatus(_Record):
    """A session's present state. waiting_for: one sentence that names the process on which the job is blocked."""

    returning: bool
    returns: int
    waiting_for: str
    audit_imbalance: float
    workers_missing: int


def stats_of(record: Tuple[Any, ...]) -> Stats:
    """Returns the statistics of the module's tuple, which has the fields in their order."""
    audit, by_switch, tensors = record[-3:]
    of_tensors = [TensorStats(*tensor) for tensor in tensors]
    fields: Tuple[Any, ...] = (*record[:-3], AuditStats(*audit), SwitchStats(*by_switch), of_tensors)
    return Stats(*fields)
