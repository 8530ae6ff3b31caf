"""Trains a DistributedDataParallel model through Millrace's shards.

    import millrace
    mill = millrace.State("tcp://a:7600,tcp://b:7600", job="run7", select="topk:0.01")
    ddp.register_comm_hook(mill, millrace.hook)

fsdp_hook is the same for FSDP2's sharded models.
Replica trains without a process group: a killed worker rejoins the running job.
StoreOptimizer and StoreEmbedding train parameters that live at the shards.
"""

from .fsdp import fsdp_hook
from .replica import Replica
from .state import State, hook
from .store import StoreOptimizer
from .store_embedding import StoreEmbedding

__all__ = ["Replica", "State", "StoreEmbedding", "StoreOptimizer", "fsdp_hook", "hook"]
