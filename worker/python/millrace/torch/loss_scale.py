"""Steps under a GradScaler: true gradients in the residual, and steps that all ranks skip alike.

A rank meets an infinite gradient when earlier buckets are on their way already, and the other ranks learn of it at the
step's end. Then every rank fills its gradients with infinity, so that its GradScaler skips the step. Nothing is lost:

- the update of the skipped step is deferred: all ranks add it to the update of the next step;
- the gradient that this rank pushed in the skipped step is withdrawn: its negative enters with the next gradient.

So a skipped step contributes no gradient, as in plain DDP, and residuals of earlier steps arrive one step later.
"""

import array

import torch

# The tensor that is over 0 where a rank has an infinite gradient.
FLAG = "millrace.overflow"
# Its value at such a rank. A grid follows the flag's zeros, or has the job's first exponent, which is 90 at most. So 2^90
# never rounds to 0.
RAISED = 1.0
RAISED_ON_GRID = 2.0**90


class LossScale:
    """Holds the state between a skipped step and the next one.

    Threads  before_push() and the calls beside it belong to the caller's thread, end_step() to the waiter. The end of a
             step, which the caller awaits, lies between them.
    """

    def __init__(self, scaler, raised=RAISED):
        self._scaler, self._raised = scaler, raised
        self._scale = 1.0
        self._own = {}  # name: the gradient of the last push
        self._pushed_before = {}  # name: the gradient that the present step withdraws
        self._withdraws = False  # the step before was skipped
        self._overflow = False  # this rank has met an infinite gradient in the present step
        self.deferred = {}  # name: the update of skipped steps, which is not applied yet
        self.skipped = 0

    def begin_step(self):
        """Reads the scale of the step's loss."""
        self._scale = float(self._scaler.get_scale())
        self._overflow = False

    def before_push(self, name, values):
        """Turns a scaled gradient into the one to push, in place, and remembers it."""
        values.mul_(1.0 / self._scale)
        self._remember(name, values)

    def without_gradient(self, name, values):
        """Replaces a gradient that is not finite by an empty one."""
        self._overflow = True
        values.zero_()
        self._own[name].zero_()
        if self._withdraws:
            values.sub_(self._pushed_before[name])

    def flag(self):
        """Returns the value of the tensor FLAG in this step, [1]."""
        return array.array("f", [self._raised if self._overflow else 0.0])

    def end_step(self, flag, slices):
        """Completes a step whose updates are in `slices`, true means over the ranks.

        flag    [1], the update of FLAG: over 0 where a rank met an infinite gradient.
        slices  (name, values) of all tensors; afterwards scaled gradients, or infinity in a skipped step.
        Returns whether the step is skipped.
        """
        skip = bool(flag[0] > 0)
        for name, values in slices:
            if skip:
                self._defer(name, values)
                values.fill_(float("inf"))
            else:
                if name in self.deferred:
                    values.add_(self.deferred.pop(name).to(values))
                values.mul_(self._scale)
        self._withdraws = skip
        self.skipped += skip
        return skip

    def withdrawn(self, name):
        """Returns the gradient that the next push will take back, or None."""
        return self._own.get(name) if self._withdraws else None

    def is_settled(self):
        """Says whether no skipped step has left an update to add, or a gradient to withdraw."""
        return not self._withdraws and not any(bool(values.any()) for values in self.deferred.values())

    def load(self, deferred):
        """Continues from a saved state, in which withdrawn gradients are in the residual already."""
        self.deferred = {name: values.clone() for name, values in deferred.items()}
        self._withdraws = False

    def _remember(self, name, values):
        if self._withdraws:
            self._pushed_before[name] = self._own[name]
            self._own[name] = values.clone()
            values.sub_(self._pushed_before[name])
        elif name in self._own:
            self._own[name].copy_(values)
        else:
            self._own[name] = values.clone()

    def _defer(self, name, values):
        if name in self.deferred:
            self.deferred[name] = self.deferred[name].to(values.device).add_(values)
        else:
            self.deferred[name] = values.to(torch.float32, copy=True)
