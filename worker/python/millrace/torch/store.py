"""millrace.torch.StoreOptimizer: parameters live at the shards, which change them with every step's gradients."""

import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import torch

from .deadline import Deadline, seconds_of
from .options import check_save_path, http_of_rank, rank_and_world_size, shard_list, split_options
from .store_embedding import StoreEmbedding
from .store_job import NO_ENTRIES, StoreJob
from .store_rule import Rule

FORMAT = 1
# Pulls of several tensors wait at the same time.
_PULLS = 8
# Of a table, at each shard. The library would plan for steps that push all of it, with a message for each of many parts.
_PARTS = 4


class StoreOptimizer(torch.optim.Optimizer):
    """Is one rank's membership in a job whose shards hold the parameters. step() pushes the gradients and pulls the values.

    params      a Module: its parameters and its StoreEmbeddings. Or what torch.optim takes: parameters, pairs
                (name, parameter), or groups of them as dicts.
    servers     "tcp://a:7600,tcp://b:7600" or a list: the shards, the same list at all ranks.
    job         name of the job at the shards; that of the tables has ".tables" behind it.
    store       the rule: "sgd:RATE", "momentum:RATE[:MOMENTUM]", "adagrad:RATE[:EPSILON]",
                "adam:RATE[:BETA1[:BETA2[:EPSILON]]]". One rule for all parameters, which stays as it is.
    tables      {name: StoreEmbedding}, for callers that give no Module.
    select      entries that a rank sends of each gradient, "topk:0.01"; "none": all.
    codec       of contributions, "gap+qsgd4"; None: without loss.
    store_begin "worker": the parameters of rank 0 count, and tables begin with zeros. "zeros". "saved": the shards' saves
                of the last job of this name.
    timeout     seconds that a step may take. None: no limit.
    options     any option of a job or a worker by its name (worker/OPTIONS.md). None: as if it were not given. Not
                save_path: the session lacks a residual that state_dict() has taken.

    Values   gradients are averaged over the ranks (combine="mean"). The shards hold f32.
    Sparse   gradients of Embedding(sparse=True) are pushed as rows. A pull asks for the entries of the update alone.
    Lazy     momentum and adam change entries whose gradient is not 0; torch.optim changes the others too.
    Errors   JobError. ValueError: the shards cannot do it, with the reason. A step() that fails or is interrupted after its
             first push leaves the jobs: this rank's values would no longer be the shards'. Every later call raises then.
    Ends     finish(), the end of a `with` block, or the end of the process or of the StoreOptimizer, as of a millrace.State.
    """

    _step_supports_amp_scaling = True  # a GradScaler calls step() itself, which refuses it

    def __init__(self, params: Any, servers: Union[str, Sequence[str]], *, job: str, store: str,
                 tables: Optional[Mapping[str, StoreEmbedding]] = None, select: Optional[str] = "none",
                 codec: Optional[str] = None, store_begin: Optional[str] = "worker", rank: Optional[int] = None,
                 world_size: Optional[int] = None, http: Union[str, int, None] = None,
                 timeout: Optional[float] = 600.0, **options: Any) -> None:
        library = importlib.import_module("millrace")
        self.rank, self.world_size = rank_and_world_size(rank, world_size)
        self._begin, self._timeout = store_begin or "worker", seconds_of(timeout)
        of_job, of_worker = split_options(library, options)
        check_save_path(of_worker, "state_dict()")
        of_job = {"name": job, "workers": self.world_size, "combine": "mean", "select": select or "none", "store": store,
                  "store_begin": self._begin, **({} if codec is None else {"codec_up": codec}), **of_job}
        self._rule = Rule.of_text(library.JobConfig(**of_job).store)
        of_worker = {"worker": self.rank, "shards": shard_list(servers), "http": http_of_rank(http, self.rank),
                     **of_worker}
        if isinstance(params, torch.nn.Module):
            tables = {**_tables_of(params), **(tables or {})}
            params = list(params.named_parameters())
        self._names: Dict[torch.Tensor, str] = {}
        self._jobs: List[Any] = []
        self._broken: Optional[BaseException] = None  # of a step that failed
        self._connected = False
        super().__init__(self._unnamed(params), self._rule.group())
        for group in self.param_groups:
            self._rule.check(group)
        self._tables = dict(tables or {})
        self._trained = {name: parameter for parameter, name in self._names.items() if parameter.requires_grad}
        for name, parameter in self._trained.items():
            _check_parameter(name, parameter)
        if not self._trained and not self._tables:
            raise ValueError("there is nothing to train: no parameter needs gradients, and there is no StoreEmbedding")
        self._dense: Any = None
        self._of_tables: Any = None
        self._pulls = ThreadPoolExecutor(_PULLS, "millrace pull")
        try:
            self._connect(library, of_job, of_worker)
        except BaseException:
            self.close()  # as failed: the caller gets no optimizer that could do it
            raise

    def _connect(self, library, of_job, of_worker):
        """Joins the jobs, and takes the first values."""
        if self._trained:
            self._dense = self._join(library, of_job, of_worker,
                                     {name: parameter.numel() for name, parameter in self._trained.items()})
        if self._tables:
            self._of_tables = self._join(library, _job_of_tables(of_job), _worker_of_tables(of_worker, self._dense is not None),
                                         {name: table.entries for name, table in self._tables.items()})
        self._connected = True
        self._take_first_values(self._begin)
        for name, table in self._tables.items():
            table.attach(self._of_tables, name)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None, *, grad_scaler: Any = None) -> Any:
        """Pushes the gradients, waits for the step of all ranks, and pulls the changed values.

        closure      computes the loss again; its result is returned.
        grad_scaler  a GradScaler hands itself over, and is refused.
        Raises   JobError. ValueError, TypeError: a group has other values than the shards' rule, a gradient has another
                 form, or a parameter needed no gradient when the optimizer was made. Nothing is pushed then.
        """
        self._raise_broken()
        # Some releases of torch set attributes instead.
        if grad_scaler is not None or getattr(self, "found_inf", None) is not None:
            raise ValueError("a StoreOptimizer takes no GradScaler: each rank would skip steps by itself, and rows of a "
                             "StoreEmbedding would stay scaled. Train in bf16, by torch.autocast without a scaler")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._rule.check(group)
        for parameter, name in self._names.items():
            if name not in self._trained and parameter.requires_grad and parameter.grad is not None:
                raise ValueError(f"'{name}' needed no gradient when the StoreOptimizer was made, so it is no tensor of the job: "
                                 "make another StoreOptimizer, of a job of its own")
        gradients = {name: _checked_gradient(name, parameter) for name, parameter in self._trained.items()}
        try:
            self._exchange(gradients)
        except BaseException as error:
            # The push that Ctrl-C interrupts may have been made.
            if any(job.pushes for job in self._jobs) or not isinstance(error, Exception):
                self._broken = error
                self._end(lambda job: job.close())
            raise
        return loss

    def _exchange(self, gradients):
        self._begin_step()
        for name, gradient in gradients.items():
            self._push(name, gradient)
        for name, table in self._tables.items():
            self._of_tables.push_rows(name, *table.gradient())
            table.drop_gradient()
        if self._trained:
            updates = {name: self._dense.wait(name) for name in self._trained}
            returned = self._dense.has_returned()
            self._pull({name: None if returned else update for name, update in updates.items()})
        for name in self._tables:
            self._of_tables.wait(name)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients, those of the tables too."""
        super().zero_grad(set_to_none)
        for table in self._tables.values():
            table.drop_gradient()

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a group while the optimizer is made. Later the job's tensors are fixed, and it raises ValueError."""
        if getattr(self, "_connected", False):
            raise ValueError("a job's tensors are fixed: make another StoreOptimizer, of a job of its own, for more parameters")
        super().add_param_group(param_group)

    @property
    def session(self) -> Any:
        """The Session of the parameters; None where there are tables alone."""
        return self._dense and self._dense.session

    @property
    def table_session(self) -> Any:
        """The Session of the tables; None where there are none."""
        return self._of_tables and self._of_tables.session

    def state_dict(self) -> Dict[str, Any]:
        """Returns groups, the number of steps, and this rank's residual by parameter name.

        Values and the rule's own state are at the shards: --store-dir saves them there, and store_begin="saved" begins
        with them. Call it between steps.
        """
        self._raise_broken()
        state = super().state_dict()
        state["millrace"] = {"format": FORMAT, "store": self._rule.text, "steps": self._steps(),
                             "workers": self.world_size,
                             "residual": {str(self.rank): {name: entries for job in self._jobs
                                                           for name, entries in job.take_residual().items()}}}
        return state

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Begins with the residual of a saved state, of the same rule and number of workers.

        Raises  ValueError: another rule, rank or number of workers, or other parameters. Or the rule has a state, and this
                job did not begin with the shards' saves. Nothing changes then.
        """
        self._raise_broken()
        saved = state_dict.get("millrace")
        if saved is None or saved.get("format") != FORMAT:
            raise ValueError(f"this is no state of format {FORMAT}, as StoreOptimizer.state_dict() makes it")
        if saved["store"] != self._rule.text:
            raise ValueError(f"the state is of the rule {saved['store']}, and this job's is {self._rule.text}")
        if self._rule.has_state and saved["steps"] and self._begin != "saved":
            raise ValueError(f"the shards have the state of {self._rule.word} after {saved['steps']} steps, and this job "
                             f'begins without it: save it with --store-dir, and give store_begin="saved"')
        residual = self._residual_of(saved)
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "millrace"})
        for job in self._jobs:
            job.begin_with_residual(residual)

    def finish(self, timeout: Optional[float] = 600.0) -> None:
        """Leaves the jobs as finished, when the shards have acknowledged everything."""
        self._raise_broken()
        limit = Deadline(timeout)
        self._pulls.shutdown()
        self._end(lambda job: limit.call(job.finish))

    def close(self) -> None:
        """Leaves the jobs at once."""
        self._end(lambda job: job.close())  # ends the pulls
        self._pulls.shutdown()

    def __enter__(self) -> "StoreOptimizer":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()

    def _join(self, library, of_job, of_worker, sizes):
        job = StoreJob(library, of_job, of_worker, sizes, self._timeout)
        self._jobs.append(job)
        return job

    def _begin_step(self):
        limit = Deadline(self._timeout)
        for job in self._jobs:
            job.begin_step(limit)

    def _end(self, end):
        """Calls end(job) for all jobs. Raises the first error afterwards."""
        errors = []
        for job in self._jobs:
            try:
                end(job)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _raise_broken(self):
        if self._broken is not None:
            raise RuntimeError("an earlier step failed, and this StoreOptimizer has left its jobs: begin with another one, from "
                               "the shards' values or from a checkpoint") from self._broken

    def _residual_of(self, saved):
        """Returns this rank's residual in a saved state, which is checked."""
        of_ranks = saved["residual"]
        is_empty = not any(len(indices) for of_rank in of_ranks.values() for indices, _ in of_rank.values())
        if saved["workers"] != self.world_size and not is_empty:
            raise ValueError(f"the state has a residual of {saved['workers']} workers, and this job has {self.world_size}")
        if saved["workers"] == self.world_size and str(self.rank) not in of_ranks:
            raise ValueError(f"the state is of rank {', '.join(of_ranks)}, and this is rank {self.rank}: each rank saves and "
                             "loads a state of its own")
        residual = of_ranks.get(str(self.rank), {})
        entries = {name: count for job in self._jobs for name, count in job.entries.items()}
        wrong = [name for name, (indices, _) in residual.items()
                 if name not in entries or (len(indices) and int(indices.max()) >= entries[name])]
        if wrong:
            raise ValueError(f"the saved state is of another model: it differs in {', '.join(sorted(wrong))}")
        return residual

    def _steps(self):
        return max(job.steps for job in self._jobs)

    def _unnamed(self, params):
        """Returns the groups as torch.optim takes them, and notes the names: given ones, or 0, 1, ..."""
        groups = list(params)
        if not groups or not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        numbered = 0
        for at, group in enumerate(groups):
            listed = group["params"]
            listed = [listed] if isinstance(listed, torch.Tensor) else list(listed)
            pairs = []
            for one in listed:
                pairs.append(one if isinstance(one, tuple) else (str(numbered), one))
                numbered += 1
            for name, parameter in pairs:
                if name in self._names.values():
                    raise ValueError(f"two parameters have the name '{name}'")
                self._names[parameter] = name
            groups[at] = {**group, "params": [parameter for _, parameter in pairs]}
        return groups

    def _push(self, name, gradient):
        if gradient is None:
            self._dense.push_entries(name, *NO_ENTRIES)
        elif gradient.layout == torch.sparse_coo:
            gradient = gradient.coalesce()
            values = gradient.values()
            self._dense.push_rows(name, gradient.indices()[0], values.reshape(len(values), gradient.shape[1:].numel()))
        else:
            self._dense.push(name, gradient.contiguous())

    def _pull(self, updates):
        """Pulls the entries that the updates changed; all of a parameter whose update is None."""
        pulled = [self._pulls.submit(self._dense.pull_into, name, self._trained[name].detach(), update)
                  for name, update in updates.items()]
        for one in pulled:
            one.result()

    def _take_first_values(self, store_begin):
        if self._dense is None:
            return
        self._begin_step()
        if store_begin == "worker":
            self._dense.place([parameter.detach() for parameter in self._trained.values()])
        self._pull(dict.fromkeys(self._trained))


def _checked_gradient(name, parameter):
    """Returns the gradient or None. Raises TypeError: rows are pushed, and it has other sparse entries."""
    gradient = parameter.grad
    if gradient is not None and gradient.layout == torch.sparse_coo and gradient.sparse_dim() != 1:
        raise TypeError(f"the gradient of '{name}' has {gradient.sparse_dim()} sparse dimensions: rows are pushed, as "
                        "Embedding(sparse=True) has them")
    return gradient if gradient is None else gradient.detach()  # create_graph=True gives it a graph


def _tables_of(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, StoreEmbedding)}


def _job_of_tables(of_job):
    # A table is never in a worker's memory, so no worker places it.
    begin = "zeros" if of_job["store_begin"] == "worker" else of_job["store_begin"]
    return {"parts_per_shard": _PARTS, **of_job, "name": f"{of_job['name']}.tables", "store_begin": begin}


def _worker_of_tables(of_worker, has_other_job):
    """Returns the options of the second session of a process: files of its own, and no second port."""
    if not has_other_job:
        return of_worker
    paths = {"load_path": f"{of_worker['load_path']}.tables"} if of_worker.get("load_path") else {}
    return {**of_worker, "http": "", **paths}


def _check_parameter(name, parameter):
    if parameter.device.type != "cpu" or not parameter.is_contiguous() or not parameter.is_floating_point():
        raise TypeError(f"parameter '{name}' is a {parameter.dtype} on {parameter.device}, "
                        f"{'' if parameter.is_contiguous() else 'not '}contiguous: values are pulled into contiguous "
                        "floating-point parameters in CPU memory")
    if not parameter.numel():
        raise ValueError(f"parameter '{name}' has no entries: leave it out")
