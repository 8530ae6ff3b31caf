"""Options of path="peers": those of a rank, why others are refused, and whether all ranks have the same."""

import json

WORKER_OPTIONS = ("key_file", "http", "http_tls", "http_token_file", "http_insecure", "link_rate")

_REASONS = {
    "every step of a sum among peers has all ranks": (
        "mode", "staleness", "quorum", "deadline", "participants", "apply_after_acks", "workers_min"),
    "shards have parts and sizes of their own": ("parts_per_shard", "exchange_timeout", "heartbeat"),
    "each parameter has a sum of its own": ("fuse_below",),
    "the shards keep the accounts of the audit": ("audit",),
    "the shards hold the weights": ("initial_weights", "store", "store_begin"),
    "the shards keep the updates that a history refers to": ("history",),
    "a switch adds for shards": (
        "path", "switch_address", "switch_job", "switch_slots", "switch_lanes", "switch_packet_bytes", "switch_codec",
        "switch_return_after", "switch_key_file", "rack"),
    "silence= is the time after which a rank counts as dead": ("dead_after", "shard_silence"),
    "timeout= is the time limit of the ranks' meeting": ("connect_timeout", "start_timeout"),
    "TCP sends again, and the end of a connection ends the group": ("resend_after", "reconnect_after_max"),
    "all ranks have one key, key_file": ("server_key_file",),
    "a parameter has one step under way": ("updates_kept_max",),
    "it is of the sessions with shards": ("keep_freed_memory", "shards", "worker"),
    "a lost rank cannot return: all ranks restart": ("returns",),
    "state_dict() and load_state_dict() save and load": ("load_path", "save_path"),
}
_REASON_OF = {name: reason for reason, names in _REASONS.items() for name in names}


def refusal(name, known):
    """Returns the sentence that refuses an option. known: the options that there are."""
    reason = _REASON_OF.get(name)
    return f"option '{name}' is of servers" + (f": {reason}" if reason else f'; path="peers" has {", ".join(known)}')


def check_equal(gather, rank, options, error):
    """Compares the options of all ranks.

    gather   function that takes this rank's bytes and returns those of all ranks.
    options  {name: value} that json takes; the values of all ranks must be equal.
    error    exception that takes a sentence and a code.
    """
    own = json.dumps(options, sort_keys=True)
    for other, text in enumerate(gather(own.encode())):
        theirs = json.loads(text)
        for name in sorted({*options, *theirs}):
            if theirs.get(name) != json.loads(own).get(name):
                raise error(f"rank {other} has {_value(name, theirs)}, and rank {rank} has {_value(name, options)}: "
                            "all ranks need the same", "job_mismatch")


def _value(name, options):
    return f"{name}={options[name]}" if name in options else f"no {name}"
