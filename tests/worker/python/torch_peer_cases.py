"""Cases of torch_ddp_test.py about path="peers" alone: the ranks' key, and the options that they refuse."""

import secrets
import tempfile
from pathlib import Path

import torch.distributed as dist

import torch_ddp_cases
from torch_ddp_cases import Deep, nothing_is_lost


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


ALL = torch_ddp_cases.OVER_PEERS + (ranks_with_other_options_are_refused, key_of_all_ranks, options_of_servers_are_refused)
