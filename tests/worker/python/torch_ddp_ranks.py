"""One rank of torch_ddp_test.py: runs all cases and writes {case: "", why it was skipped, or the error} to a file.

    torch_ddp_ranks.py PROGRAMS PACKAGE RANK WORLD_SIZE FOLDER SERVERS [OTHER_SERVERS]   (SERVERS "fake": sums over gloo; "peers": path="peers")
"""

import faulthandler
import json
import logging
import sys
import time
import traceback
import unittest
from pathlib import Path

import torch_required  # first: finds the package

import torch
import torch.distributed as dist

import torch_ddp_cases
import torch_ddp_training
import torch_fakes
import torch_half_cases
import torch_path_cases
import torch_peer_cases
import torch_unused_cases


def main():
    faulthandler.enable()
    rank, world_size, folder, servers = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    if servers == "fake":
        library, cases = torch_fakes.FakeLibrary(torch_fakes.SumsOverGloo()), torch_ddp_cases.ALL
    elif servers == "peers":
        import millrace as library  # built
        cases = torch_peer_cases.ALL + torch_half_cases.ALL + torch_unused_cases.ALL
    else:
        import millrace as library  # built
        cases = torch_ddp_cases.ALL + torch_ddp_cases.REAL + torch_path_cases.ALL + torch_half_cases.ALL + torch_unused_cases.ALL
    ranks = torch_ddp_training.Ranks(rank, world_size, library, servers, *sys.argv[5:])
    results = {}
    for case in cases:
        began, failed = time.monotonic(), False
        try:
            case(ranks)
            results[case.__name__] = ""
        except unittest.SkipTest as reason:
            results[case.__name__] = f"{torch_ddp_training.SKIPPED}{reason}"
        except Exception:
            results[case.__name__], failed = traceback.format_exc(), True
        print(f"{case.__name__}: {time.monotonic() - began:.2f} s", flush=True)
        (folder / f"rank{rank}.json").write_text(json.dumps(results), encoding="utf-8")
        # A case that fails at one rank alone may leave the other one in a collective.
        if any(ranks.gather(failed)):
            break


if __name__ == "__main__":
    main()
