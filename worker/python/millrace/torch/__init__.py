"""Trains a DistributedDataParallel model through Millrace's shards.

    import millrace
    mill = millrace.State("tcp://a:7600,tcp://b:7600", job="run7", select="topk:0.01")
    ddp.register_comm_hook(mill, millrace.hook)
"""

from .state import State, hook

__all__ = ["State", "hook"]
