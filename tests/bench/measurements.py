"""The measurements of RESULTS.md: the command of each, and the figures in the JSON that the command prints.

A path is a tuple of steps into that JSON: a key of an object, a dictionary that one item of a list must match, or
EACH, every item of a list.
"""

from dataclasses import dataclass

EACH = object()
AT_MOST, AT_LEAST = "≤", "≥"


@dataclass(frozen=True)
class Goal:
    side: str
    limit: float

    def met(self, value):
        return value <= self.limit if self.side == AT_MOST else value >= self.limit


@dataclass(frozen=True)
class Figure:
    """One row of RESULTS.md. The value of a repetition is path / over * scale; `pick` takes one of several values."""

    name: str
    path: tuple
    goal: Goal | None = None
    over: tuple = ()
    scale: float = 1.0
    pick: object = None


@dataclass(frozen=True)
class Measurement:
    """One command. Only a person runs one with `by_hand`, the reason. measure.py --all leaves those out, and those with `hours`,
    the most that the command takes: it runs them by name."""

    name: str
    subject: str
    title: str
    command: str
    figures: tuple
    repetitions: int = 5
    by_hand: str = ""
    hours: int = 0


def row(algorithm, key, **more):
    """The path of a key of the row with this name, in a report with rows."""
    return ("rows", {"algorithm": algorithm, **more}, key)


def ddp_row(scheme, key):
    """The path of a key of a row of ddp_step.py."""
    return ("rows", {"scheme": scheme}, key)


SELECTIONS = (("exact", "exact"), ("trimmed", "trimmed"), ("binary search", "binary_search"), ("GSpar, greedy", "gspar"),
              ("threshold reuse, drifting data", "threshold_reuse"))
TRACES = (("cnn-step20", "CNN, step 20"), ("cnn-step300", "CNN, step 300"), ("lstm-step20", "LSTM, step 20"), ("lstm-step100", "LSTM, step 100"))
MODES = (("dense", "dense, synchronous"), ("synchronous", "synchronous"), ("staleness-1", "bounded staleness 1"),
         ("staleness-4", "bounded staleness 4"), ("staleness-16", "bounded staleness 16"), ("quorum", "partial, all workers but one"),
         ("half", "partial, half of the workers drawn"), ("half-deadline", "half drawn, with a deadline of 20 ms"), ("asynchronous", "asynchronous"))


def selections():
    for name, density, share in (("select_1_percent", "0.01", "1 %"), ("select_0_1_percent", "0.001", "0.1 %")):
        yield Measurement(
            name, "Selection", f"Selections of {share} of 16.8 M Gaussian f32, one thread, in read passes over the array.",
            f"millrace-bench select --dimension 16777216 --density {density} --json",
            tuple(Figure(title, row(algorithm, "ratio_to_read_pass")) for title, algorithm in SELECTIONS))
    for trace, title in TRACES:
        yield Measurement(
            f"select_{trace}", "Selection", f"Selections of 1 % of a real gradient ({title}), repeated to 16.8 M, in read passes.",
            f"millrace-bench select --dimension 16777216 --trace $MILLRACE_SHARED/data/traces/{trace}.npz --density 0.01 --json",
            tuple(Figure(label, row(algorithm, "ratio_to_read_pass")) for label, algorithm in SELECTIONS[:2]), repetitions=3)
    yield Measurement(
        "select_torch", "Selection", "Time of `torch.topk` over that of the exact selection, one thread each.",
        "/usr/bin/python3 tests/bench/papers/select_torch.py --millrace $MILLRACE_PROGRAMS/millrace-bench --json",
        tuple(Figure(f"top-k of {share}", ("rows", {"density": density}, "torch_over_exact"), Goal(AT_LEAST, 20))
              for share, density in (("0.1 %", 0.001), ("1 %", 0.01))), repetitions=3)


def index_codecs():
    for name, density, share in (("codec_0_01_percent", "0.0001", "0.01 %"), ("codec_0_1_percent", "0.001", "0.1 %"),
                                 ("codec_1_percent", "0.01", "1 %"), ("codec_10_percent", "0.1", "10 %")):
        figures = [Figure(f"`{codec}`: bits an index over the entropy", row(codec, "bits_per_index"), over=row(codec, "entropy_bits_per_index"))
                   for codec in ("gap", "golomb", "adaptive")]
        figures += [Figure(f"`gap`: {verb}, M indices/s", row("gap", f"{verb}_mindex_s")) for verb in ("encode", "decode")]
        figures += [Figure(f"`qsgd4`: {verb}, GB/s of f32", row("qsgd4", f"{verb}_gb_s")) for verb in ("encode", "decode")]
        figures += [Figure(f"`{codec}`: queries, M/s", row(codec, "query_m_s")) for codec in ("bloom_p0", "bloom_blocked", "bloom_p2")]
        yield Measurement(name, "Codecs and sums", f"Codecs of {share} of 16.8 M uniform indices, one thread.",
                          f"millrace-bench codec --dimension 16777216 --density {density} --json", tuple(figures))
    for trace, title in TRACES:
        for suffix, density, share in (("", "0.01", "1 %"), ("_0_1_percent", "0.001", "0.1 %")):
            figures = (Figure("`adaptive`: bits an index", row("adaptive", "bits_per_index")),
                       Figure("`adaptive`: bits over Rice codes of every 128 gaps", row("adaptive", "over_rice_blocks")),
                       Figure("`adaptive`: encode, M indices/s", row("adaptive", "encode_mindex_s")),
                       Figure("`adaptive`: decode, M indices/s", row("adaptive", "decode_mindex_s")),
                       *(Figure(f"`{method}`: bits an entry", row(method, "bits_per_entry", kind="method"))
                         for method in ("three_lc", "sketchml", "skcompress", "dgc")))
            yield Measurement(f"codec_{trace}{suffix}", "Codecs and sums", f"Codecs of the largest {share} of a real gradient ({title}, worker 0).",
                              f"millrace-bench codec --trace $MILLRACE_SHARED/data/traces/{trace}.npz --worker 0 --density {density} --json",
                              figures, repetitions=3)


def codecs():
    yield from index_codecs()
    yield Measurement(
        "codec_hostile", "Codecs and sums", "Time to decode hostile bytes over that of the slowest valid code of that length; n = 2^20, 1 %.",
        "millrace-bench codec --hostile --dimension 1048576 --json", (Figure("the worst codec", ("rows", EACH, "ratio"), pick=max),), repetitions=3)
    yield Measurement(
        "codec_auto", "Codecs and sums", "Codec `auto` against the best forced choice: 200 cells of size, density, rate and clustering.",
        "millrace-bench codec --auto-grid --json",
        (Figure("median cell", ("ratio_median",)), Figure("90th percentile", ("ratio_p90",)), Figure("worst cell", ("ratio_worst",))), repetitions=3)
    sums = (("sum of four streams", "sum_many"), ("sum of two streams", "sum_two"), ("the large quarter of the sum of four", "sum_at_least"),
            ("entries that a sum did not carry", "not_carried"))
    yield Measurement(
        "reduce", "Codecs and sums", "Sums of sparse streams of 1 % of 16.8 M, one thread.",
        "millrace-bench reduce --dimension 16777216 --density 0.01 --json",
        (*(Figure(f"{title}, ns an entry", row(algorithm, "ns_per_entry")) for title, algorithm in sums),
         Figure("sum of four streams, in passes over them", row("sum_many", "ratio_to_memory_pass"))))
    figures = []
    for data in ("CNN, 1.0%", "LSTM, 1.0%", "CNN, 0.1%", "LSTM, 0.1%"):
        for title, suffix in (("contribution", ""), ("update", "_down")):
            figures.append(Figure(f"{data}: bits an index of a{'n' if suffix else ''} {title}", ("summary", {"name": data}, f"history{suffix}")))
            figures.append(Figure("the same, over `adaptive`", ("summary", {"name": data}, f"history{suffix}"),
                                  over=("summary", {"name": data}, f"adaptive{suffix}")))
    yield Measurement("history_bits", "Codecs and sums", "Indices coded against the updates' history (job option `history`), with error feedback.",
                      "tests/bench/papers/history_bits.py", tuple(figures), by_hand="tests/bench/papers/run_all.sh runs it")


def over_before(name, subject, figures, options=""):
    """Returns the measurement of figures of another one over those of an older build, in turns.

    figures  {name of a figure of the other measurement: Goal or None}.
    options  of before.py.
    """
    return Measurement(
        f"{name}_before", subject, f"The figures of `{name}` over those of an older build, in turns. MILLRACE_BEFORE: its programs.",
        f'tests/bench/before.py "$MILLRACE_BEFORE" "$MILLRACE_PROGRAMS" {name}{options}',
        tuple(Figure(figure, ("rows", {"figure": figure}, "ratios", EACH), goal) for figure, goal in figures.items()), repetitions=1)


NO_SLOWER = Goal(AT_MOST, 1.05)


def rounds():
    yield Measurement(
        "worker", "A worker alone", "One worker's round without sockets: n = 2^24, 1 % pushed, 32 parts, in passes over the pushed entries.",
        "millrace-bench worker --dimension 16777216 --density 0.01 --json",
        (Figure("everything is carried", row("all_carried", "ratio_to_memory_pass")),
         Figure("half is carried", row("half_carried", "ratio_to_memory_pass")),
         Figure("everything is carried, ms", row("all_carried", "round_ms")), Figure("half is carried, ms", row("half_carried", "round_ms"))))
    yield Measurement(
        "worker_dense", "A worker alone", "One worker's round of a dense push: n = 2^24, top-k of 1 %; one and two threads in turns.",
        "millrace-bench worker --dimension 16777216 --density 0.01 --json",
        (Figure("one thread, in passes over the gradient", row("dense_1_thread", "ratio_to_memory_pass")),
         Figure("one thread, ms", row("dense_1_thread", "round_ms")), Figure("two threads, ms", row("dense_2_threads", "round_ms")),
         Figure("one thread over two", row("dense_1_thread", "round_ms"), Goal(AT_LEAST, 1.6), over=row("dense_2_threads", "round_ms")),
         Figure("the same of a plain addition of the gradient", row("dense_1_thread", "addition_ms"), over=row("dense_2_threads", "addition_ms"))))
    yield over_before("worker_dense", "A worker alone", {"one thread, ms": Goal(AT_MOST, 0.85), "two threads, ms": None})
    serve = "millrace-bench serve --workers 4 --shards 2 --dimension 16777216 --density 0.01 --rounds 50"
    ddp_schemes = (("f32", "gloo, f32"), ("bf16", "gloo, bf16"), ("millrace", "Millrace"), ("millrace_reselect", "Millrace, 1 % returns"))
    yield Measurement(
        "serve_loopback", "Rounds through shards", "A whole round of 4 workers and 2 shards on loopback, n = 2^24, 1 %.",
        f"{serve} --only lossless --json",
        (Figure("lossless, over bare ZeroMQ", row("lossless", "ratio_to_raw_zmq")),
         Figure("the same with the tuned allocator", row("lossless", "ratio_to_raw_zmq_tuned_allocator")),
         Figure("lossless, ms", row("lossless", "round_ms"))))
    yield over_before("serve_loopback", "Rounds through shards", {"lossless, ms": NO_SLOWER}, " --pairs 5")
    yield Measurement(
        "serve_secure", "Rounds through shards",
        "The round on loopback without keys and with them, in turns. With keys, every message of Millrace's is encrypted; bare ZeroMQ's are not.",
        f"{serve} --only lossless --secure --json",
        (Figure("with keys, over without", row("lossless+keys", "ratio_to_without_keys")),
         Figure("with keys, over bare ZeroMQ", row("lossless+keys", "ratio_to_raw_zmq")),
         Figure("with keys, ms", row("lossless+keys", "round_ms"))))
    yield Measurement(
        "serve_1gbit", "Rounds through shards", "The same round, every process behind 1 Gbit/s.", f"{serve} --link-rate 1gbit --json",
        (Figure("lossless, over bare ZeroMQ", row("lossless", "ratio_to_raw_zmq")),
         Figure("4 bits, over bare ZeroMQ", row("qsgd4", "ratio_to_raw_zmq")),
         Figure("bare ZeroMQ, ms", ("raw_zmq_ms",))))
    for acks, title in ((0, "at once"), (2, "once 2 workers have them"), (4, "once all workers have them")):
        yield Measurement(
            f"serve_acks_{acks}", "Rounds through shards", f"A small round (n = 2^16) whose updates are applied {title}.",
            f"millrace-bench serve --dimension 65536 --rounds 1000 --only lossless --apply-after-acks {acks} --json",
            (Figure("a round, ms", row("lossless", "round_ms")), Figure("over bare ZeroMQ", row("lossless", "ratio_to_raw_zmq"))))
    yield Measurement(
        "serve_2_32", "Rounds through shards", "Memory at n = 2^32 with 43 k entries a worker.",
        "millrace-bench serve --dimension 4294967296 --density 1e-5 --only lossless --json",
        (Figure("a worker, MB", row("lossless", "worker_peak_mb")), Figure("a shard, MB", row("lossless", "shard_peak_mb"))), repetitions=3)
    yield Measurement(
        "store_rows", "Rounds through shards", "Pull and push of 65,536 rows of 16 of a table at 2 shards, by PyTorch's binding; speed over bare ZeroMQ's.",
        "/usr/bin/python3 tests/bench/store_rows.py --programs $MILLRACE_PROGRAMS --package $MILLRACE_PROGRAMS/../python --json",
        (Figure("pull and push, speed over bare ZeroMQ's", ("speed",), Goal(AT_LEAST, 0.5)),
         Figure("pull, speed over bare ZeroMQ's", ("pull_speed",)), Figure("push, speed over bare ZeroMQ's", ("push_speed",)),
         Figure("pull, ms", ("pull_ms",)), Figure("push, ms", ("push_ms",))))
    yield Measurement(
        "embedding_table", "Rounds through shards", "An embedding of 2^26 rows of 16 at 2 shards, trained by 2 ranks of PyTorch, 1,024 samples of 8 words each.",
        "/usr/bin/python3 tests/bench/embedding_table.py --programs $MILLRACE_PROGRAMS --package $MILLRACE_PROGRAMS/../python --json",
        (Figure("a rank's memory, with torch, over the table's", ("worker_over_table",), Goal(AT_MOST, 0.25)),
         Figure("the shards' memory over the table's", ("shards_over_table",)), Figure("the table, GiB", ("table_gib",)),
         Figure("a step, ms", ("step_ms",)), Figure("a step of a rank, MB up", ("mb_up",)), Figure("a step of a rank, MB down", ("mb_down",)),
         Figure("loss after 50 steps", ("first_loss",)), Figure("loss after 1,000 steps", ("last_loss",)),
         Figure("right after 1,000 steps", ("last_right",))), repetitions=2)
    yield Measurement(
        "hook_overhead", "Rounds through shards", "A bucket of 25 MB with 4 parameters through PyTorch's hook, beside the same bucket from C++ threads.",
        "/usr/bin/python3 tests/bench/hook_overhead.py --programs $MILLRACE_PROGRAMS --package $MILLRACE_PROGRAMS/../python --json",
        (Figure("the hook beyond the C++ session, ms a bucket", ("whole_overhead_ms",), Goal(AT_MOST, 0.3)),
         Figure("the hook over the C++ session", ("whole_ratio",)), Figure("of the pushes, ms", ("push_overhead_ms",)),
         Figure("a bucket from C++ threads, ms", ("session_whole_ms",))))
    yield Measurement(
        "ddp_step", "Rounds through shards",
        "Time in communication of a step of PyTorch's DDP, over DDP's by gloo: 25 M parameters, 4 ranks and 2 shards behind 1 Gbit/s each. "
        "gloo of torch 1.13 adds no bf16: the ranks exchange bytes, and add. That time is the link's and the processors'.",
        "/usr/bin/python3 tests/bench/ddp_step.py --programs $MILLRACE_PROGRAMS --package $MILLRACE_PROGRAMS/../python --json",
        (Figure("1 % without loss, over gloo's f32", ddp_row("millrace", "over_f32"), Goal(AT_MOST, 0.06)),
         Figure("1 % without loss, over gloo's bf16", ddp_row("millrace", "over_bf16"), Goal(AT_MOST, 0.12)),
         Figure("the same, 1 % returns, over gloo's f32", ddp_row("millrace_reselect", "over_f32")),
         Figure("processor time that Millrace adds to one of 4 ranks, over gloo's f32", ddp_row("millrace", "processor_ms"), scale=0.25,
                over=ddp_row("f32", "communication_ms")),
         Figure("one pass over the gradient's memory, no exchange, over gloo's f32", ddp_row("passes", "over_f32")),
         Figure("the pass, processor ms of the ranks", ddp_row("passes", "processor_ms")),
         Figure("a step without communication, ms", ddp_row("f32", "alone_ms")),
         *(Figure(f"{title}, {label}", ddp_row(scheme, key), scale=scale) for scheme, title in ddp_schemes
           for key, label, scale in (("communication_ms", "ms", 1), ("processor_ms", "processor ms of the ranks", 1),
                                     ("shards_processor_ms", "processor ms of the shards", 1), ("bytes_sent", "MB sent by a rank", 1e-6),
                                     ("bytes_received", "MB received by a rank", 1e-6))
           if key != "shards_processor_ms" or scheme.startswith("millrace"))), repetitions=2)
    yield Measurement(
        "trace_cost", "Rounds through shards", "Small steps of 2 workers and 2 shards while `millrace trace` records them, and while nothing asks.",
        "tests/bench/trace_cost.py --programs $MILLRACE_PROGRAMS --json",
        (Figure("processor time of a step that is recorded, over one that is not", ("on_ratio",), Goal(AT_MOST, 1.05)),
         Figure("the same, first quartile of 9 pairs", ("on_quartile_1",)), Figure("the same, third quartile", ("on_quartile_3",)),
         Figure("the same, by the number of spans and the time of one", ("on_by_spans",)),
         Figure("its time, with the collector on the same two cores", ("on_wall_ratio",)),
         Figure("a step with timers that are off, over one without timers", ("off_ratio",), Goal(AT_MOST, 1.01)),
         Figure("spans a step, of the process that records most", ("spans_a_step",)),
         Figure("a timer that is off, ns", ("timer_off_ns",)), Figure("a span, ns", ("timer_on_ns",))), repetitions=3)
    attacks = (("silent", "10,000 connections that never speak"), ("unfinished", "messages that never end"),
               ("slow_reader", "Hellos for a taken number, whose sender reads nothing"), ("hello_flood", "the same, whose sender reads the refusals"),
               ("wrong_key", "handshakes with a key that is not allowed"), ("replay", "recorded handshakes, sent again"))
    yield Measurement(
        "hostile_rate", "Rounds through shards", "Steps a second of 4 workers and 2 shards with keys, under attack over those without one; peak memory of the shard.",
        "/usr/bin/python3 tests/bench/hostile_rate.py --programs $MILLRACE_PROGRAMS --json",
        (*(Figure(title, ("rows", {"kind": kind}, "ratio"), Goal(AT_LEAST, 0.8)) for kind, title in attacks),
         *(Figure(f"`{kind}`: growth of the shard's peak, over its limit of memory", ("rows", {"kind": kind}, "growth_over_limit"), Goal(AT_MOST, 1))
           for kind, _ in attacks)),
        repetitions=3)
    crowd = ("rows", {"workers": 256})
    yield Measurement(
        "crowd", "Rounds through shards", "256 workers on 2 shards, n = 2^20, 1 %.", "millrace-bench crowd --json",
        (Figure("a round, ms", (*crowd, "round_ms")), Figure("time a byte, over 4 workers", (*crowd, "time_per_byte_over_first")),
         Figure("a shard's memory for a worker, in its bytes up", (*crowd, "memory_over_stream")),
         Figure("a shard, MB", (*crowd, "shard_peak_mb"))), repetitions=3)


def recoveries():
    exact = tuple(Figure(title, (key,), Goal(AT_MOST, 0)) for title, key in
                  (("steps lost", "steps_lost"), ("pushes counted twice", "double_counted"), ("wrong weights", "wrong_weights")))
    yield Measurement(
        "recover_kills", "Failures and joins", "A shard killed (SIGKILL) in a job of 4 workers and started again at once, empty; n = 2^24, 1 %.",
        "millrace-bench recover --kills 20 --joins 0 --json",
        (Figure("until every worker has an update again, s", ("kills", EACH, "first_update_s")), *exact), repetitions=2)
    yield over_before("recover_kills", "Failures and joins", {"until every worker has an update again, s": NO_SLOWER}, " --pairs 3")
    yield Measurement(
        "recover_spare", "Failures and joins", "A shard killed (SIGKILL) in the same job and not started again: a spare takes its number.",
        "millrace-bench recover --spare --kills 20 --joins 0 --json",
        (Figure("until every worker has an update again, the longest, s", ("kills", EACH, "first_update_s"), Goal(AT_MOST, 2), pick=max), *exact),
        repetitions=2)
    yield Measurement(
        "recover_spare_etcd", "Failures and joins", "The same with the membership table in one member of etcd, on this machine.",
        "/usr/bin/python3 tests/bench/recover_etcd.py --spare --kills 20 --joins 0 --json",
        (Figure("until every worker has an update again, the longest, s", ("kills", EACH, "first_update_s"), Goal(AT_MOST, 2), pick=max), *exact),
        repetitions=2)
    yield Measurement(
        "recover_spare_stopped", "Failures and joins",
        "A shard stopped (SIGSTOP) in the same job, as on a host that is down: no connection ends, and its lease in etcd decides.",
        "/usr/bin/python3 tests/bench/recover_etcd.py --spare --stop --kills 20 --joins 0 --json",
        (Figure("until every worker has an update again, s", ("kills", EACH, "first_update_s")), *exact), repetitions=2)
    yield Measurement(
        "etcd_polls", "Failures and joins",
        "8 shards without a job watch and read their table in etcd. Beside them, 8 bare watch streams, and 8 clients that read as shards without "
        "a stream do. Shares of a core of three members together.",
        "/usr/bin/python3 tests/bench/etcd_polls.py --programs $MILLRACE_PROGRAMS --json",
        (Figure("nothing asks", ("idle_share",)), Figure("8 watch streams", ("watched_share",)),
         Figure("8 clients read 20 times a second", ("read_share",)), Figure("8 shards", ("shards_share",)), Figure("a shard's part", ("share_a_shard",)),
         Figure("reads a second of a shard", ("reads_a_shard",)), Figure("a shard's own processor time", ("shard_share",))), repetitions=3)
    yield Measurement(
        "recover_joins", "Failures and joins", "A new process in the running job.", "millrace-bench recover --kills 0 --joins 12 --json",
        (Figure("until it has the weights, s", ("joins", EACH, "has_weights_s")), Figure("until it takes part, s", ("joins", EACH, "takes_part_s")),
         Figure("the others' rounds meanwhile, over before", ("joins", EACH, "round_ratio")), *exact), repetitions=2)
    yield Measurement(
        "kills_1000", "Failures and joins",
        "Two shards of a reproducible job, killed (SIGKILL) at random moments and started again, empty; others are stopped and continued.",
        "/usr/bin/python3 tests/integration/kills_test.py $MILLRACE_PROGRAMS --kills 1000",
        (Figure("kills", ("kills",), Goal(AT_LEAST, 1000)), Figure("stops", ("stops",)), Figure("steps of the job", ("steps",)),
         Figure("bytes of the model that differ from an undisturbed run's", ("bytes_that_differ",), Goal(AT_MOST, 0))),
        repetitions=1, hours=2)
    kinds = (("workers", "a worker"), ("shards", "a shard"), ("switch", "the switch"), ("etcd", "a member of etcd"),
             ("partition", "a partition of 0.2 s to 2 s"))
    goals = ((10, Goal(AT_LEAST, 0.8)), (60, Goal(AT_LEAST, 0.95)))
    script = "/usr/bin/python3 tests/bench/goodput.py --programs $MILLRACE_PROGRAMS/.."
    yield Measurement(
        "goodput", "Failures and joins", "Useful pushes of 4 workers and 2 shards under random failures over those of undisturbed times.",
        # About 35 minutes: of each kind 20 failures with 10 s between them, and 3 with 60 s.
        f"{script} --mtbf 10s,60s --kills 20,3 --quiet 10s --json",
        (*(Figure(f"{title}, MTBF {mtbf} s", ("rows", {"kind": kind, "mtbf_s": mtbf}, "goodput"), goal) for kind, title in kinds for mtbf, goal in goals),
         *(Figure(f"{title}: recovery, {label}, s", ("rows", {"kind": kind, "mtbf_s": 10}, f"recovery_{key}_s"), goal)
           for kind, title in kinds for key, label, goal in (("p50", "median", None), ("p99", "p99", Goal(AT_MOST, 2)), ("max", "longest", None))),
         Figure("time of partitions, share, MTBF 10 s", ("rows", {"kind": "partition", "mtbf_s": 10}, "partitioned_s"),
                over=("rows", {"kind": "partition", "mtbf_s": 10}, "seconds"))), repetitions=1)
    yield Measurement(
        "goodput_600s", "Failures and joins", "The same with 600 s between failures, 3 of each kind. The five jobs run at the same time.",
        f"{script} --mtbf 600s --kills 3 --quiet 60s --at-once --json",
        tuple(Figure(f"{title}{label}", ("rows", {"kind": kind, "mtbf_s": 600}, key), goal)
              for kind, title in kinds
              for label, key, goal in (("", "goodput", Goal(AT_LEAST, 0.95)), (": longest recovery, s", "recovery_max_s", Goal(AT_MOST, 2)))),
        repetitions=1, hours=1)


def peers():
    bench = "millrace-bench peers --dimension 16777216 --density 0.00781"
    hosts = "deploy/netlab.sh mpirun --ranks 4 --link-rate 1gbit --"
    exact = ("ssar_recursive_doubling", "ssar_split_allgather")

    def over_dense(*algorithms):
        return tuple(Figure(f"`{algorithm}`", row(algorithm, "over_openmpi_dense")) for algorithm in algorithms)

    yield Measurement("peers_2_ranks", "Peers", "The sum of 2 ranks' 131 k entries of 16.8 M on loopback, over a dense `MPI_Allreduce`.",
                      f"mpirun -n 2 --oversubscribe {bench} --repeats 7 --algorithm {','.join(exact)},oktopk,dense_ring --json",
                      over_dense(*exact, "oktopk", "dense_ring"))
    yield Measurement("peers_8_ranks", "Peers", "The same, 8 ranks on 2 cores.",
                      f"mpirun -n 8 --oversubscribe --mca mpi_yield_when_idle 1 {bench} --repeats 7 --algorithm {','.join(exact)} --json",
                      over_dense(*exact))
    yield Measurement("peers_4_hosts", "Peers", "The same, 4 hosts at 1 Gbit/s, indices coded by `gap`.",
                      f"{hosts} {bench} --codec gap+raw --algorithm {','.join(exact)} --json", over_dense(*exact), repetitions=3)
    yield Measurement("peers_4_hosts_4_bits", "Peers", "The same with 4 bits a value, sums too.",
                      f"{hosts} {bench} --codec gap+qsgd4 --algorithm ssar_split_allgather --json",
                      (*over_dense("ssar_split_allgather"),
                       Figure("bytes sent by a rank", row("ssar_split_allgather", "bytes_sent_max"))), repetitions=3)
    yield Measurement("peers_4_hosts_dense", "Peers", "The same hosts at density 0.1, with 4 bits in the dense phase.",
                      f"{hosts} millrace-bench peers --dimension 16777216 --density 0.1 --algorithm dsar_split_allgather --quantizer raw+qsgd4 --json",
                      over_dense("dsar_split_allgather"), repetitions=3)
    yield Measurement("peers_one_region", "Peers", "Ok-Topk on 8 hosts at 1 Gbit/s, all indices in a sixteenth of the dimension.",
                      f"deploy/netlab.sh mpirun --ranks 8 --link-rate 1gbit -- {bench} --algorithm oktopk --distribution one_region --json",
                      (Figure("a step, ms", row("oktopk", "median_ms")),), repetitions=3)
    yield Measurement("peers_uniform", "Peers", "The same with uniform indices, to compare with.",
                      f"deploy/netlab.sh mpirun --ranks 8 --link-rate 1gbit -- {bench} --algorithm oktopk --json",
                      (Figure("a step, ms", row("oktopk", "median_ms")),), repetitions=3)
    overlapped = ("oktopk", "gtopk", "ssar_split_allgather")
    yield Measurement("peers_overlap", "Peers", "A step beside equally long computation, over the longer of the two; 2 hosts at 1 Gbit/s.",
                      f"deploy/netlab.sh mpirun --ranks 2 --link-rate 1gbit -- {bench} --overlap --algorithm {','.join(overlapped)} --json",
                      tuple(Figure(f"`{algorithm}`", row(algorithm, "step_over_longer")) for algorithm in overlapped), repetitions=3)
    dense = ("dense_ring", "dsar_split_allgather", "dense_rabenseifner")
    yield Measurement("simulate_4096", "Peers", "4,096 simulated ranks, n = 2^20, 1 %: processor seconds on one core.",
                      f"millrace-bench simulate --ranks 4096 --dimension 1048576 --density 0.01 --algorithm {','.join(dense)} --json",
                      (*(Figure(f"`{algorithm}`, s", row(algorithm, "processor_s")) for algorithm in dense),
                       *(Figure(f"`{algorithm}`, simulated ms", row(algorithm, "virtual_ms")) for algorithm in dense)), repetitions=1)
    yield over_before("simulate_4096", "Peers", {f"`{algorithm}`, s": NO_SLOWER for algorithm in dense} |
                      {f"`{algorithm}`, simulated ms": None for algorithm in dense}, " --pairs 2")
    yield Measurement("simulate_oktopk", "Peers", "Ok-Topk on 1,024 simulated ranks, n = 2^20, 1 %: words of a rank over 6k(P − 1)/P.",
                      "millrace-bench simulate --ranks 1024 --dimension 1048576 --density 0.01 --algorithm oktopk --steps 2 --json",
                      (Figure("a step that re-evaluates", row("oktopk", "words_over_bound", steps="re-evaluating")),
                       Figure("another step", row("oktopk", "words_over_bound", steps="others"))), repetitions=1)
    cells = ("cells", EACH, "ratio")
    yield Measurement("peers_auto", "Peers", "`--algorithm auto` against the best forced exact sum: 96 cells of ranks, rate, size and density.",
                      "tests/bench/papers/auto_grid.py", (Figure("every cell", cells), Figure("worst cell", cells, Goal(AT_MOST, 1.1), pick=max)),
                      by_hand="tests/bench/papers/run_all.sh runs it")


def switch():
    traffic = "millrace-switch-bench traffic --pmd net_ring"
    rates = (Figure("contributions in, Gbit/s", ("gbit_s",)), Figure("entries, M/s", ("mentries_s",)))
    yield Measurement("switch_traffic", "Switch and racks", "The switch on one core: 4 workers, 1 %, packets of 1,400 bytes, every MAC and sum checked.",
                      f"{traffic} --json", (*rates, Figure("over a loop that only reads the packets", ("read_ratio",))))
    yield Measurement("switch_traffic_memory", "Switch and racks", "The same without DPDK's headers.", "millrace-switch-bench traffic --pmd memory --json",
                      rates)
    yield Measurement("switch_lcores", "Switch and racks", "The switch on two lcores, a thread and a queue each.", f"{traffic} --lcores 2 --json",
                      (rates[0], Figure("over one lcore", ("lcores_ratio",))))
    yield Measurement("switch_packet", "Switch and racks", "One packet in the aggregator: 4 workers, 450 entries, nine of ten indices the same.",
                      "millrace_slot_machine", (Figure("a packet, ns", ("machine_ns",)), Figure("over the MAC alone", ("machine_over_mac",)),
                                                Figure("the MAC, ns", ("mac_ns",)), Figure("decoding, ns", ("decode_ns",))))
    serve = "millrace-bench serve --workers 8 --link-rate 1gbit"
    yield Measurement("switch_path", "Switch and racks", "A round by path switch over one by the shards: 8 workers, 2 shards, n = 2^24, 1 %, 1 Gbit/s.",
                      f"{serve} --only lossless --path both --json", (Figure("path switch over shards", row("switch", "ratio_to_server")),
                                                                       Figure("path switch, ms", row("switch", "round_ms"))), repetitions=3)
    yield Measurement("switch_loss", "Switch and racks", "The same with 1 % of the packets lost, over the same links without a loss.",
                      f"{serve} --path switch --loss 0.01 --json",
                      (Figure("packets one by one, lost one by one", row("switch+loss", "ratio_to_same_links")),
                       Figure("bursts whole, lost whole", row("switch+burst-loss", "ratio_to_same_links")),
                       Figure("single losses, over whole bursts without one", row("switch+loss", "ratio_to_plain_links"))), repetitions=3)
    yield Measurement("switch_racks", "Switch and racks", "Bytes into shard 0 through two racks of 4 workers, n = 2^22, 1 Gbit/s.",
                      f"{serve} --racks 2 --path switch --dimension 4194304 --json",
                      (Figure("over the coded union", row("racks", "ratio_to_coded_union")),
                       Figure("over those without racks", row("racks", "ratio_to_straight_bytes")),
                       Figure("the same, each rack cutting to its share of k", row("racks+cut", "ratio_to_straight_bytes"))), repetitions=3)
    yield Measurement("switch_veth", "Switch and racks", "The switch on a veth pair by net_af_packet, over `dpdk-testpmd` on the same pair.",
                      "tests/bench/switch_veth.sh $MILLRACE_PROGRAMS/millrace-switch --duration 3s --repeats 3",
                      (Figure("all workers send the same indices", ("ratio",)), Figure("each worker sends its own", ("apart_ratio",))), repetitions=3)


def convergence():
    debian = "--data debian --rounds 1000 --select topk:512 --reselect topk:1536"
    for name, title, flags, repetitions in (("converge_w8a", "w8a, 600 rounds, a tenth of 300 features", "", 2),
                                            ("converge_debian", "the Debian package index, 1,000 rounds, 512 of a million features", debian + " ", 1)):
        figures = [Figure(f"{label}: log-loss", row(mode, "log_loss")) for mode, label in MODES]
        figures += [Figure(f"{label}: bytes of dense over these", row(mode, "dense_bytes_over_this")) for mode, label in MODES[1:]]
        yield Measurement(name, "Modes of training", f"Held-out log-loss of every mode after as many rounds, 4 workers, 2 shards: {title}.",
                          f"millrace-bench converge {flags}--points 1 --json", tuple(figures), repetitions)
    yield Measurement("converge_slow_worker", "Modes of training", "One of four workers ten times slower: the others' steps, over a synchronous job's.",
                      "millrace-bench converge --compute-time 20ms --slow-worker 3:10 --rounds 100 --points 1 --json",
                      tuple(Figure(label, row(mode, "rate_over_synchronous")) for mode, label in MODES[2:]), repetitions=1)


# The goal is one write of the array. The counter also has a bucket's outputs: 64 positions and values of 4 bytes each, and a code
# of 20 bytes, beside 4,096 f32. So the limit is 1 + (64 * 8 + 20) / 16,384.
ARRAY_AND_OUTPUTS = 1.033


def cuda():
    passes = (("top-k of 1 %", "top_k_1_percent", Goal(AT_MOST, 2.5)), ("top-k of 0.1 %", "top_k_0_1_percent", None), ("f16", "f16", None),
              ("ternary", "terngrad", None), ("1 bit", "onebit", None), ("radix select of 1 %", "radix_1_percent", None),
              ("`threshold_reuse` of 1 %, a step that reuses", "threshold_reuse_1_percent", None),
              ("`sampled` of 1 %, a step that reuses", "sampled_1_percent", None), ("Gaussian-k of 1 %", "gaussian_1_percent", None),
              ("GSpar of 1 %, 2 iterations", "gspar_1_percent", None), ("sums below a threshold", "tail_sums", None))
    redsync = "0_1_percent_of_16777216_ms"
    figures = [Figure(f"{title}, in read passes", (f"{key}_read_passes",), goal) for title, key, goal in passes]
    figures += [
        Figure("`torch.topk`, unsorted, over top-k of 1 %", ("torch_topk_unsorted_over_top_k_1_percent",), Goal(AT_LEAST, 10)),
        Figure("CUB radix sort of the keys over top-k of 1 %", ("cub_radix_sort_keys_ms",), over=("top_k_1_percent_ms",)),
        Figure("add, 64 of 4,096, 2 bits: memory read, in arrays", ("dram_of_kernels", "BucketTopK", "read"), Goal(AT_MOST, 2), scale=1 / (4 << 28)),
        Figure("the same: memory written, in arrays: one write, and the outputs", ("dram_of_kernels", "BucketTopK", "write"),
               Goal(AT_MOST, ARRAY_AND_OUTPUTS), scale=1 / (4 << 28)),
        Figure("the same, over two reads and a write", ("bucket_64_of_4096_qsgd2_over_two_reads_one_write",)),
        Figure("add with histogram, over two reads and a write", ("add_with_histogram_ms",), over=("two_reads_one_write_ms",)),
        Figure("read pass over QSGD of 4 bits", ("qsgd4_share_of_read_pass",), Goal(AT_LEAST, 0.6)),
        Figure("Bloom queries at rate 0.01, 10^9/s", ("bloom_queries_g_per_s",), Goal(AT_LEAST, 50)),
        Figure("sign mean of 2.7 million values, ms", ("sign_mean_of_1_percent_ms",)),
        Figure("a read pass, GB/s", ("read_pass_gb_per_s",)),
        Figure("push of 1 %: bytes over the bus, over positions and f32", ("push_1_percent_bus_bytes_over_entries",), Goal(AT_MOST, 1.1)),
        Figure("the same with 4 bits, over positions and codes", ("push_1_percent_qsgd4_bus_bytes_over_entries",), Goal(AT_MOST, 1.1)),
        Figure("0.1 % of 2^24 uniform values: radix select over top-k", (f"radix_{redsync}",), over=(f"top_k_{redsync}",)),
        Figure("the same: radix select over a reused threshold", (f"radix_{redsync}",), over=(f"sampled_{redsync}",)),
        Figure("the same: radix select over a searched threshold", (f"radix_{redsync}",), over=(f"k_to_2k_{redsync}",)),
        Figure("1 % of 36,864 values: Bloom filter, policy P0, QSGD of 7 bits, ms", ("bloom_p0_qsgd7_of_36864_ms",)),
    ]
    for name, card in (("cuda_h100", "H100"), ("cuda_h200", "H200")):
        yield Measurement(name, "Kernels on a card", f"Kernels on an {card}, 2^28 f32.", "millrace_cuda_bench", tuple(figures),
                          by_hand="it needs the card, torch and CUB (tests/bench/cuda/README.md)")
    yield Measurement("cuda_accumulator_h200", "Kernels on a card", "A push whose residual is on an H200: 2^28 f32, top-k of 1 %.", "millrace_cuda_bench", (
        Figure("bytes over the bus, over the selected entries", ("accumulator_push_bus_bytes_over_entries",), Goal(AT_MOST, 1.1)),
        Figure("a push, entries in the host's memory, ms", ("accumulator_push_1_percent_ms",)),
        Figure("the addition that refuses NaN, over two reads and a write", ("accumulator_add_refusing_ms",), over=("two_reads_one_write_ms",)),
        Figure("the addition that leaves NaN out, over two reads and a write", ("accumulator_add_ms",), over=("two_reads_one_write_ms",)),
        Figure("the norm, in read passes", ("accumulator_norm_read_passes",))), by_hand="it needs the card")
    yield Measurement("cuda_device_topk", "Kernels on a card", "`cub::DeviceTopK` of 1 % of 2^28 keys with their indices, in any order, over our top-k.",
                      "tests/bench/cuda/card.sh figures", (
        Figure("`cub::DeviceTopK` over top-k of 1 %", ("cub_top_k_1_percent_ms",), Goal(AT_LEAST, 1.5), over=("top_k_1_percent_ms",)),
        Figure("the keys are those of a sort: 1", ("cub_top_k_1_percent_equals_sort",), Goal(AT_LEAST, 1))),
        by_hand="it needs a card, and a toolkit whose CCCL has DeviceTopK (13.0's does not)")


MEASUREMENTS = {one.name: one for subject in (selections, codecs, rounds, recoveries, peers, switch, convergence, cuda) for one in subject()}
