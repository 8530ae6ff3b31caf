"""Millrace: sums of sparse gradients over the workers of a job.

    job = millrace.JobConfig(name="demo", workers=2, select="topk:0.01")
    me = millrace.WorkerConfig(worker=0, servers="tcp://10.0.0.1:7600")
    with millrace.Session(job, me, [millrace.Tensor("w", gradient.size)]) as session:
        step = session.push("w", gradient)
        session.wait_into("w", step, gradient)

This part needs neither NumPy nor torch. State, hook and what else millrace.torch has are imported when they are used.
"""

import importlib
from typing import TYPE_CHECKING, Any, List

from .errors import JobError
from . import _millrace, peers
from .advice import Advice, PlannedTime, advise
from .configs import JobConfig, WorkerConfig, options
from .option_info import OptionInfo
from .session import Session, WaitList, check
from .stats import AuditStats, SessionStatus, Stats, SwitchStats, TensorStats
from .tensor import Tensor
from .updates import Copies, Entries, Filled, Piece, PulledSteps, Update, copies

Array = _millrace.Array
__version__ = _millrace.version()

__all__ = ["Advice", "Array", "AuditStats", "Copies", "Entries", "Filled", "JobConfig", "JobError", "OptionInfo", "Piece",
           "PlannedTime", "PulledSteps", "Session", "SessionStatus", "Stats", "SwitchStats", "Tensor", "TensorStats", "Update",
           "WaitList", "WorkerConfig", "advise", "check", "copies", "options", "peers"]

_OF_TORCH = ("State", "fsdp_hook", "hook")


if TYPE_CHECKING:
    from . import torch as torch
    from .torch import State as State, fsdp_hook as fsdp_hook, hook as hook
else:  # a type checker would take every unknown name for one of them

    def __getattr__(name: str) -> Any:
        """Imports millrace.torch for its names, and torch with it."""
        if name == "torch" or name in _OF_TORCH:
            package = importlib.import_module(".torch", __name__)
            return package if name == "torch" else getattr(package, name)
        raise AttributeError(f"module 'millrace' has no attribute '{name}'")


def __dir__() -> List[str]:
    return [*globals(), *_OF_TORCH]
