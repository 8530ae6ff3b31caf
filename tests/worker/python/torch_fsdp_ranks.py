"""One rank of torch_fsdp_test.py: runs all cases and writes {case: "" or the error} to a file.

    torch_fsdp_ranks.py PROGRAMS PACKAGE RANK RANKS FOLDER SERVERS
"""

import faulthandler
import json
import sys
import time
import traceback
from pathlib import Path

import torch_required  # first: finds the package  # noqa: F401

import torch
import torch.distributed as dist

import torch_fsdp_cases


def main():
    faulthandler.enable()
    rank, world_size, folder, servers = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    ranks = torch_fsdp_cases.Ranks(servers, folder)
    results = {}
    for case in torch_fsdp_cases.ALL:
        began = time.monotonic()
        try:
            case(ranks)
            results[case.__name__] = ""
        except Exception:
            results[case.__name__] = traceback.format_exc()
        print(f"{case.__name__}: {time.monotonic() - began:.2f} s", flush=True)
        (folder / f"rank{rank}.json").write_text(json.dumps(results), encoding="utf-8")
        failed = ranks.gather(bool(results[case.__name__]))
        # A case that fails at one rank alone may leave the others in a collective.
        if any(failed) and not all(failed):
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
