"""Cases of torch_ddp_test.py about path="peers" alone: the ranks' key, and the options that they refuse."""

import contextlib
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import torch.distributed as dist

import torch_ddp_cases
from torch_ddp_cases import nothing_is_lost, stats_of_training
from torch_ddp_training import Deep, assert_near, assert_ranks_agree, stats_of_early_pushes, train, wrapped

# Every way of summing the largest entries: of Ok-Topk, TopkA, gTopk, Gaussian-k, RedSync and SparCML.
FAMILIES = ("oktopk:boundaries=pooled", "topk_a", "gtopk", "gaussian_k", "redsync_allgather", "ssar_recursive_doubling",
            "ssar_split_allgather", "dsar_split_allgather")


def codec_of_sums(ranks):
    """codec_down codes the sums: all ranks have the same coded sums, and the error stays with their owners."""
    exact = nothing_is_lost(ranks, steps=1)
    for allreduce in ("ssar_split_allgather", "dsar_split_allgather"):
        coded = nothing_is_lost(ranks, steps=1, allreduce=allreduce, codec_down="gap+qsgd8")
        errors = [float((one - other).norm() / other.norm()) for one, other in zip(coded, exact)]
        assert all(0 < error < 0.1 for error in errors), errors
        nothing_is_lost(ranks, allreduce=allreduce, codec_down="gap+qsgd8", select="topk:0.05", clip=0.5)


def metrics_of_peers(ranks):
    """/metrics of a rank has the figures of stats(), behind TLS and a token where they are given."""
    def metric_of(text, name):
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))

    with tempfile.TemporaryDirectory() as folder:
        token, secured = Path(folder) / "token", {}
        token.write_text("0123456789abcdef0123456789abcdef\n", encoding="utf-8")
        token.chmod(0o600)
        context = ssl.create_default_context()
        if shutil.which("openssl"):
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                            "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
                           cwd=folder, check=True, capture_output=True)
            secured["http_tls"] = f"{folder}/cert.pem,{folder}/key.pem"
            context.load_verify_locations(f"{folder}/cert.pem")
        with ranks.state(select="topk:0.05", http="127.0.0.1:0", http_token_file=str(token), **secured) as state:
            train(ranks, wrapped(Deep, state), steps=3)
            address = f"http{'s' if secured else ''}://127.0.0.1:{state.http_port}/metrics"
            with contextlib.suppress(urllib.error.HTTPError):
                urllib.request.urlopen(address, timeout=60, context=context)
                raise AssertionError("/metrics answered without the token")
            request = urllib.request.Request(address, headers={"Authorization": "Bearer 0123456789abcdef0123456789abcdef"})
            dist.barrier()
            with urllib.request.urlopen(request, timeout=60, context=context if secured else None) as page:
                text = page.read().decode()
            stats = state.stats()
        assert metric_of(text, "millrace_peer_steps_total") == stats.steps == 3
        assert metric_of(text, "millrace_peer_step_seconds_count") == 3
        assert metric_of(text, "millrace_peer_ranks") == ranks.world_size
        assert metric_of(text, "millrace_peer_dense_bytes_total") == stats.bytes_dense > 0
        assert metric_of(text, "millrace_peer_contribution_entries_total") > 0
        assert abs(metric_of(text, "millrace_peer_residual_norm") - stats.residual_norm) < 1e-3 * stats.residual_norm
        assert abs(metric_of(text, "millrace_peer_wait_seconds_total") - stats.seconds_waited) < 1e-3
        assert 0 < metric_of(text, "millrace_peer_network_bytes_total") <= stats.bytes_up + stats.bytes_down


def topk_trains_over_peers(ranks):
    """Each way of summing the largest entries trains, and all ranks end with the same bits."""
    for allreduce in FAMILIES:
        stats = stats_of_training(ranks, 24, allreduce=allreduce, select="topk:0.02")
        assert 0 < stats.ratio < 0.1, (allreduce, stats.ratio)
        assert 0.01 < stats.density < 0.04, (allreduce, stats.density)


def sums_of_the_largest_entries_are_hidden(ranks):
    """Each way of summing them runs while the backward pass continues."""
    for allreduce in FAMILIES:
        stats = stats_of_early_pushes(ranks, allreduce=allreduce, select="topk:0.02")
        assert stats.seconds_hidden > 0 and stats.ratio < 0.1, (allreduce, stats)


def dense_algorithms(ranks):
    """Sums of all entries are those of plain DDP, by every exact allreduce."""
    expected = train(ranks, wrapped(Deep), steps=2)
    for info in ranks.library.peers.algorithms():
        if info.takes_k:
            continue
        with ranks.state(allreduce=info.name) as state:
            found = train(ranks, wrapped(Deep, state), steps=2)
        assert_near(found, expected)
        assert_ranks_agree(ranks, found)


def ranks_with_other_options_are_refused(ranks):
    """Settings that must be equal at all ranks are compared when they meet; every rank learns which differs."""
    try:
        ranks.state(model=Deep(), clip=1.0 + ranks.rank, recipe="rate=0.1").close()
        raise AssertionError("ranks with two norms met")
    except ranks.library.JobError as error:
        assert error.code == "job_mismatch" and "clip=1" in str(error) and "clip=2" in str(error), error


def key_of_all_ranks(ranks):
    """Ranks that meet in torch's store authenticate each other and encrypt, and nothing is lost."""
    with tempfile.TemporaryDirectory() as folder:
        key = Path(ranks.gather(folder)[0]) / "job.key"
        if ranks.rank == 0:
            key.write_text("millrace-secret-key " + secrets.token_hex(32) + "\n", encoding="utf-8")
            key.chmod(0o600)
        dist.barrier()
        nothing_is_lost(ranks, key_file=str(key))
        dist.barrier()


def ranks_meet_by_a_list_of_addresses(ranks):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        own = f"127.0.0.1:{free.getsockname()[1]}"
    nothing_is_lost(ranks, addresses=ranks.gather(own))


def options_of_servers_are_refused(ranks):
    for options, error, word in (({"mode": "partial"}, TypeError, "every step of a sum among peers has all ranks"),
                                 ({"shard_silence": 5}, TypeError, "silence= is"), ({"load_path": "x"}, TypeError, "load_state_dict"),
                                 ({"codec_down": "gap+qsgd8", "allreduce": "oktopk"}, ranks.library.JobError, "ssar_split_allgather"),
                                 ({"clip": 1.0, "grad_scaler": object()}, ValueError, "clip_grad_norm_"),
                                 ({"http": "nowhere"}, ValueError, "has no port"),
                                 ({"server_key_file": "cluster.pub"}, TypeError, "all ranks have one key"),
                                 ({"listen": "0.0.0.0:0"}, ranks.library.JobError, "or say insecure"),
                                 ({"key_file": "/nowhere/job.key"}, ranks.library.JobError, "/nowhere/job.key"),
                                 ({"key_file": "job.key", "insecure": True}, ranks.library.JobError, "leave one of them out"),
                                 ({"returns": "in_order"}, TypeError, "returns"), ({"allreduce": "none"}, ValueError, "none")):
        try:
            with ranks.state(model=Deep(), **options):
                raise AssertionError(f"{options} was not refused")
        except error as refusal:
            assert word in str(refusal), refusal


ALL = torch_ddp_cases.OVER_PEERS + (codec_of_sums, metrics_of_peers, topk_trains_over_peers, sums_of_the_largest_entries_are_hidden,
                                    dense_algorithms, key_of_all_ranks, ranks_with_other_options_are_refused, ranks_meet_by_a_list_of_addresses,
                                    options_of_servers_are_refused)
