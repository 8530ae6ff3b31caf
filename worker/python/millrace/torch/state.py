"""millrace.State and millrace.hook: DistributedDataParallel exchanges its gradients through a Millrace job."""

import functools
import importlib
import logging
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import torch
import torch.distributed as dist

from . import velocities
from .bucket import Bucket, Coverage, Layout, Place
from .deadline import seconds_of
from .device import future_of, ready_of
from .exchange import GIVEN_UP, Exchange, lasting, not_counted
from .fsdp import MeshPlace, ShardedHook, ShardedModel, ShardedSums, states_of_shard, with_suffix
from .leaving import give_up, leave_with
from .loss_scale import FLAG, RAISED, RAISED_ON_GRID, LossScale
from .options import (check_clip, check_save_path, check_scaler, check_sharded, enabled, http_of_rank, is_on, job_name,
                      library_of_path, rank_and_world_size, shard_list, split_options)
from .parameters import Owners, named_mapping, owner_names, trained_names
from .plan import COMPRESSION, DENSE_BELOW, SELECT, check_rules, plan_tensors
from .report import Report, Stats
from .residuals import FORMAT, Residuals, share_of
from .verdict import PlannedTimes, Verdict

_log = logging.getLogger("millrace.torch")
_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def hook(state: "State", bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Exchanges a bucket of gradients: the hook for DistributedDataParallel.register_comm_hook().

    state    a State.
    Returns  a future of the bucket's flat tensor with the mean of all ranks' gradients, of the entries that the update
             has; 0 elsewhere.
    """
    return state.exchange(bucket)


class State:
    """Is one rank's membership in a job that exchanges the gradients of a DistributedDataParallel or FSDP2 model.

    servers           "tcp://a:7600,tcp://b:7600" or a list: the shards, the same list at all ranks. None with
                      path="peers".
    job               name of the job at the shards, or of the group of peers.
    path              "server": shards sum. "switch": a switch in front of them does, with options switch_address,
                      switch_job and switch_key_file. "peers": the ranks sum among themselves, over TCP, without shards.
    select            entries that a rank sends of each parameter, "topk:0.01"; "none": all.
    codec             of contributions, "gap+qsgd4"; None: without loss. Updates return without loss (codec_down).
    rank, world_size  None: those of torch.distributed, or of the environment.
    model             the model or its DistributedDataParallel; named_parameters: pairs (name, parameter). With either
                      the State connects at once. Without them the first backward pass finds the
                      DistributedDataParallel among the live objects, and connects at its last bucket.
    mesh              FSDP2: a DeviceMesh of replicas and shards. model= is sharded over its second dimension, and
                      fsdp_hook() sums over the first one. rank is the replica's, world_size the
                      number of replicas.
    dense_below       smaller parameters are sent dense and without loss; 0: none are.
    rules             {pattern: {"select": ..., "codec_up": ...}}: options of the parameters whose name matches
                      (fnmatch); the first pattern that matches counts.
    grad_scaler       the GradScaler of the training loop: residuals hold true gradients, and all ranks skip the same
                      steps. A disabled one is as none.
    summary_every     steps between two lines in the log "millrace.torch"; 0: no lines.
    tensorboard       a SummaryWriter, for scalars every summary_every steps.
    http              HOST:PORT of /metrics; rank r listens on PORT + r. http_tls, http_token_file and http_insecure are
                      options of a worker.
    timeout           seconds that the pushes of a step may wait, and its updates as long again; with path="peers" also
                      those of the ranks' meeting. None: no limit.
    options           any option of a job or a worker by its name (worker/OPTIONS.md), as mode="partial". None: as if
                      it were not given. Not save_path: the session lacks residuals that the State holds, which save()
                      returns to it. With path="peers" those of millrace.peers.OPTIONS, recipe, link_rate, the three of http, and:
    key_file          a secret key (`millrace keys new NAME`), a copy of the same file at every rank: the ranks
                      authenticate each other and encrypt. Without it they must be on one machine.
    insecure          True: they may be on several machines without a key, on a network that no stranger reaches.
    allreduce         what sums, "ssar_split_allgather" or "oktopk:boundaries=pooled" (millrace.peers); the k of one that
                      takes a k is select's.
    addresses         where each rank listens, "HOST:PORT" by rank. None: torch's store tells the ranks.
    listen            HOST:PORT where this rank listens. None: a free port of loopback where torchrun has started all
                      ranks on one machine, else of the address towards MASTER_ADDR.
    silence           seconds without an answer after which a rank counts as dead.

    Errors   JobError from backward(), of the session. It ends the exchange: the process must restart. So does a backward pass
             that ends within a step. Ctrl-C may arrive as a RuntimeError of torch that names KeyboardInterrupt.
    Model    it stays one model. Where requires_grad of a parameter changes, another State is needed, of a job of its own.
    Threads  the thread of the backward pass; a waiter thread of the State awaits the updates.
    Ends     finish(), the end of a `with` block, or the end of the process. The process leaves the job as finished, but as
             failed where sys.last_value has an exception: that which ends it, or in IPython that of an earlier cell.
             sys.exit(1) sets none: call close() before it, or leave a `with` block by it.
    """

    def __init__(self, servers: Union[str, Sequence[str], None] = None, *, job: Optional[str] = None,
                 path: Optional[str] = "server", select: Optional[str] = SELECT,
                 codec: Optional[str] = None, rank: Optional[int] = None, world_size: Optional[int] = None,
                 model: Optional[torch.nn.Module] = None, named_parameters: Any = None, mesh: Any = None,
                 dense_below: int = DENSE_BELOW, rules: Optional[Mapping[str, Mapping[str, Any]]] = None, grad_scaler: Any = None,
                 summary_every: int = 100, tensorboard: Any = None, http: Union[str, int, None] = None,
                 timeout: Optional[float] = 600.0, _library: Any = None, **options: Any) -> None:
        library = _library or importlib.import_module("millrace")
        path, timeout = path or "server", seconds_of(timeout)
        grad_scaler = enabled(grad_scaler)
        self._count_copied = getattr(getattr(library, "_millrace", None), "count_copied_in", not_counted)
        job = job_name(path, servers, job)
        self._mesh_place = None if mesh is None else MeshPlace.of_mesh(mesh)
        if self._mesh_place is not None:
            if path == "switch":
                raise ValueError('mesh= makes a job of each shard, and a switch knows one: take path="server" or "peers"')
            check_sharded(model, named_parameters, rank, world_size, grad_scaler)
            rank, world_size, job = self._mesh_place.replica, self._mesh_place.replicas, self._mesh_place.job(job)
        self._library = library_of_path(path, library, job, timeout, options)
        self.rank, self.world_size = rank_and_world_size(rank, world_size)
        of_job, of_worker = split_options(self._library, options)
        self._compression = {"select": SELECT if select is None else select} | ({} if codec is None else {"codec_up": codec})
        self._compression |= {name: of_job.pop(name) for name in COMPRESSION if name in of_job}
        self._dense_below = 0 if is_on(of_job, "unbiased") else dense_below
        self._rules = dict(rules or {})
        check_rules(self._rules)
        self._job = {"name": job, "workers": self.world_size, "combine": "mean", **of_job}
        http_rank = self.rank if self._mesh_place is None else self._mesh_place.rank
        self._worker = {"worker": self.rank, "http": http_of_rank(http, http_rank), **of_worker}
        if path == "switch":
            self._job["path"] = path
        if path == "peers":
            self._library.check_worker_options(of_worker)
        else:
            check_save_path(of_worker, "save() or state_dict()")
            self._worker["shards"] = shard_list(servers)
        # Refuses a wrong text also where every parameter is small, and travels without it.
        self._library.JobConfig(**self._job, **self._compression)
        check_clip(self._clips(), grad_scaler, self._mesh_place)
        self._fuses = path != "peers"
        check_scaler(grad_scaler, of_job)
        self._on_grid = path == "switch" or is_on(of_job, "reproducible")
        self._loss_scale = None
        if grad_scaler is not None:
            self._loss_scale = LossScale(grad_scaler, RAISED_ON_GRID if self._on_grid else RAISED)
        self._summary_every, self._tensorboard, self._timeout = summary_every, tensorboard, timeout
        self._residuals = Residuals()
        self._first_step = 0  # of a loaded state
        self._loaded = None
        self._names = None  # {parameter: name}
        self._owners = Owners(model)
        self._coverage = Coverage()
        self._places: Dict[str, Place] = {}
        self._layouts: Dict[int, Layout] = {}  # {identity of a bucket's first parameter: Layout}
        self._session: Any = None
        self._exchange: Any = None
        self._report: Any = None
        self._end: Any = None
        self._collected: List[Bucket] = []  # the first step's buckets, until the State is connected
        self._sharded = self._sums = None  # ShardedModel, ShardedSums
        if self._mesh_place is not None:
            self._sharded = ShardedModel(model, mesh)
            self._connect(self._sharded.sizes)
        elif named_parameters is not None:
            self._names = named_mapping(named_parameters)
        elif model is not None:
            self._names = trained_names(model)
        if self._names is not None:
            self._connect({name: parameter.numel() for parameter, name in self._names.items()})

    def exchange(self, bucket: Any) -> "torch.futures.Future[torch.Tensor]":
        """Pushes a bucket of DDP and returns the future of its mean. hook() calls it."""
        if self._sharded is not None:
            raise RuntimeError("this State has mesh=: its hook is fsdp_hook(), for FSDPModule.set_all_reduce_hook()")
        try:
            future = self._send(bucket)
        except BaseException as error:
            if self._exchange is not None:
                self._exchange.fail(lasting(error))
            # torch would turn it into a RuntimeError.
            if not self._at_the_end_of_backward(functools.partial(_raise, error)):
                raise
            of_futures = error if isinstance(error, Exception) else RuntimeError(repr(error))
            future = future_of(bucket.buffer())
            for waiting in [*(bucket.future for bucket in self._collected), future]:
                if waiting is not None and not waiting.done():
                    waiting.set_exception(of_futures)
            self._collected = []
            self._coverage.restart()
        # An error of the callback reaches DDP as an error; set_exception() alone would reach it as a value.
        return future.then(lambda done: done.wait())

    def sharded_hook(self) -> Callable[[torch.Tensor], None]:
        """Returns a hook for one module of an FSDP2 model. fsdp_hook() calls it."""
        if self._sharded is None:
            raise RuntimeError("fsdp_hook() takes a State with mesh= and model=; the hook of DistributedDataParallel is hook()")
        return ShardedHook(self, self._sums)

    def _send(self, bucket):
        """Sends the bucket, or collects it until the State is connected. Returns its future."""
        buffer, parameters = bucket.buffer(), bucket.parameters()
        self._check_buffer(buffer)
        layout = self._layout(parameters)
        layout.check(buffer)
        last = bucket.is_last()
        if not self._coverage.add(layout):
            if self._exchange is not None:
                self._exchange.raise_error()
                raise RuntimeError(GIVEN_UP)
            self._collected = []  # of a backward pass that was given up before its last bucket
            self._coverage.restart()
            self._coverage.add(layout)
        if self._coverage.is_at_first():
            self._owners.look(buffer, parameters)
        sent = Bucket(buffer, layout, last, ready=ready_of(buffer))
        self._collected.append(sent)
        if last:
            self._end_coverage()
        if self._exchange is not None:
            collected, self._collected = self._collected, []
            self._exchange.finds_unused = self._owners.finds_unused
            for waiting in collected:
                step = self._exchange.send(waiting)
                if step is not None:
                    exchange = self._exchange
                    if not self._at_the_end_of_backward(lambda: exchange.await_step(step)):
                        exchange.leave()
        else:
            sent.future = future_of(buffer)
        return sent.future

    def _layout(self, parameters):
        """Returns the Layout of a bucket with these parameters. A new one replaces that of DDP's buckets before."""
        first = id(parameters[0]) if parameters else None
        layout = self._layouts.get(first)
        if layout is None or not layout.is_of(parameters):
            # Until the last bucket of the first step tells the names, identities do.
            names = self._known_names(parameters) if self._names is not None else map(id, parameters)
            layout = self._layouts[first] = Layout(parameters, names)
        return layout

    @property
    def session(self) -> Any:
        """The Session, or None before the first backward pass."""
        return self._session

    @property
    def http_port(self) -> int:
        """The port of /metrics of this rank; 0: none."""
        return self._session.http_port if self._session is not None else 0

    def stats(self) -> Stats:
        """Returns the figures of this rank up to now (report.Stats).

        Raises  RuntimeError: before the State is connected.
        """
        self._require_session()
        return self._report.stats()

    def state_dict(self) -> Dict[str, Any]:
        """Returns the residual of this rank, by parameter name, for torch.save() and torch.distributed.checkpoint.

        With option momentum the velocity is in it too.
        Call it between steps: not while a backward pass runs. Training continues to the same bits, but after a step that
        a GradScaler skipped: there it loses nothing.
        Raises  RuntimeError: before the State is connected; after a step that failed or was interrupted; with momentum,
                after a step that a GradScaler skipped.
        """
        self._require_whole()
        places = {name: (place.tensor, place.entries) for name, place in self._places.items() if name != FLAG}
        self._exchange.give_all_back()
        velocity = {}
        if self._has_momentum() or self._clips():
            if self._loss_scale is not None and any(self._loss_scale.withdrawn(name) is not None for name in places):
                raise RuntimeError("the step before was skipped, and the next push takes its gradient back: with option "
                                   "momentum call state_dict() after a step that counts")
            residual, velocity = velocities.read(self._session, places)
            velocity = velocity if self._has_momentum() else {}
        else:
            residual = self._residuals.take(self._session, places)
        deferred = {}
        if self._loss_scale is not None:
            for name, values in residual.items():
                withdrawn = self._loss_scale.withdrawn(name)
                if withdrawn is not None:
                    values.sub_(withdrawn.to(values.device))
                deferred[name] = self._loss_scale.deferred.get(name, torch.zeros_like(values)).to(values.device, copy=True)
        retained = {name: self._session.retained(tensor) for name, (tensor, _) in places.items()}
        by_rank = {"residual": residual, "velocity": velocity, "retained": retained}
        if self._mesh_place is not None:
            by_rank = {key: with_suffix(values, self._mesh_place.suffix) for key, values in by_rank.items()}
        return {"format": FORMAT, "step": self._first_step + self._exchange.steps, "workers": self.world_size,
                "combine": self._job["combine"], "deferred": deferred,
                **{key: {str(self.rank): values} for key, values in by_rank.items() if values or key == "residual"}}

    def load_state_dict(self, state: Union[Dict[str, Any], Sequence[Dict[str, Any]]]) -> None:
        """Begins with a saved residual in the place of the present one, and with its thresholds, exponents and steps.

        The bits are those of a job without the interruption where the job is reproducible, has no reselect, is not over
        a switch, and all ranks load their states.

        state   the state_dict() of this rank, in a job of as many workers. Or a list with the state of every worker of
                the earlier job, for any number of workers: the residuals are shared out, and nothing is lost.
        Raises  ValueError: a state is missing, or a parameter has another name or size. RuntimeError: a step has failed.
        """
        if self._session is not None:
            self._require_whole()
        if self._mesh_place is not None:
            state = states_of_shard(state, self._mesh_place)
        self._loaded = share_of(state, self.rank, self.world_size)
        if self._session is not None:
            self._apply_loaded()

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the session's state to a file, for option load_path of a job of as many workers (Session.save()).

        Raises  RuntimeError: before the State is connected; after a step that failed, was interrupted, or was skipped by
                a GradScaler.
        """
        self._require_whole()
        if self._loss_scale is not None and not self._loss_scale.is_settled():
            raise RuntimeError("the step before was skipped, and the file has no room for its update: call save() after a "
                               "step that counts, or take state_dict()")
        self._exchange.give_all_back()
        self._residuals.give_back(self._session, {name: place.tensor for name, place in self._places.items()})
        self._session.save(path)

    def finish(self, timeout: Optional[float] = 600.0) -> None:
        """Leaves the job as finished, when the shards have acknowledged everything. It may be repeated after an error.

        Raises  RuntimeError: a step has failed or was interrupted. The job is left at once, as failed.
        """
        if self._end is not None and self._end.alive:
            try:
                self._require_whole()
            except BaseException:
                self.close()
                raise
            self._session.finish(timeout=timeout)
            self.close()

    def close(self) -> None:
        """Leaves the job at once: as failed, unless finish() has succeeded."""
        if self._end is not None and self._end.alive:
            give_up(self._end)
            self._exchange.close()
            self._session.close()

    def __deepcopy__(self, memo: Dict[int, Any]) -> "State":
        """Returns the State itself: DDP's list of hooks is copied with a model, and one membership stays one."""
        return self

    def __reduce__(self) -> Any:
        return _StateElsewhere, ()

    def __enter__(self) -> "State":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()

    def _require_session(self):
        if self._session is None:
            raise RuntimeError("the State connects in the first backward pass; give it model= to connect at once")

    def _require_whole(self):
        self._require_session()
        try:
            self._exchange.raise_within_step()
        except Exception as error:
            raise RuntimeError("the exchange has ended, perhaps within a step: that step's update may be in neither the model "
                               "nor this State. Resume from a checkpoint that was made between two steps") from error

    def _check_buffer(self, buffer):
        if buffer.layout != torch.strided or buffer.device.type not in ("cpu", "cuda") or buffer.dtype not in _TYPES:
            raise TypeError(f"a bucket of {buffer.dtype} on {buffer.device} with layout {buffer.layout}: the hook takes "
                            "dense gradients of float32, float64, float16 and bfloat16 on the CPU or on CUDA")

    def _name_collected(self):
        """Gives the parameters of the first step their names. All of them tell which model it is: several may share a layer.

        Raises  LookupError: no model has them, or two of them give other names.
        """
        steps = [bucket.layout.parameters for bucket in self._collected]
        self._names = owner_names([parameter for parameters in steps for parameter in parameters])
        self._layouts.clear()
        self._coverage.restart()
        for bucket, parameters in zip(self._collected, steps):
            bucket.layout = self._layout(parameters)
            self._coverage.add(bucket.layout)

    def _known_names(self, parameters):
        """Returns the names of a bucket's parameters.

        Raises  LookupError: the model lacks them. ValueError: the job lacks them.
        """
        unknown = [parameter for parameter in parameters if parameter not in self._names]
        if unknown:
            raise LookupError(f"a parameter of shape {list(unknown[0].shape)} in DDP's bucket is not in model= or "
                              "named_parameters= (or needs no gradient there): one State serves one model")
        if self._exchange is not None:
            new = [self._names[parameter] for parameter in parameters if parameter.numel()]
            new = [name for name in new if name not in self._places]
            if new:
                raise ValueError(f"'{new[0]}' needed no gradient when the State was connected: make another State, of a "
                                 "job of its own")
        return [self._names[parameter] for parameter in parameters]

    def _end_coverage(self):
        """Connects with the parameters of the first step, or compares those of a later one with the job's."""
        if self._exchange is None:
            if self._names is None:
                self._name_collected()
            # After an error the next backward pass tries again.
            names = self._coverage.names()
            self._connect({name: parameter.numel() for parameter, name in self._names.items() if name in names})
        elif not self._coverage.is_that_before():
            names = self._coverage.names()
            silent = [name for name in self._places if name != FLAG and name not in names]
            if silent:
                self.close()
                raise ValueError(f"DDP does not exchange {', '.join(silent)}: leave them out of named_parameters=, or set "
                                 "requires_grad before the State is made, and make another State where it changes")
        self._coverage.end()

    def _connect(self, sizes):
        library = self._library
        # Peers sum each tensor by itself.
        fuse_below = library.JobConfig(**self._job).fuse_below if self._fuses else 0
        shards = len(self._worker["shards"]) if "shards" in self._worker else None
        advise = getattr(library, "advise", None) if shards is not None or self.world_size > 1 else None
        link_rate = getattr(library.WorkerConfig(**self._worker), "link_rate", 0.0)
        times = PlannedTimes(advise, self.world_size, shards, link_rate, str(self._compression["select"]),
                             str(self._compression.get("codec_up", "gap" if self._fuses else "raw")))
        plan = plan_tensors(sizes, self._compression, fuse_below, self._dense_below, self._rules, times.of)
        tensors = [library.Tensor(tensor.name, tensor.dimension, **tensor.options) for tensor in plan.tensors]
        self._places = {tensor.name: Place(at, tensor.dimension, tensor.late) for at, tensor in enumerate(plan.tensors)}
        if self._loss_scale is not None:
            self._places[FLAG] = Place(len(tensors), 1, True)
            # A dense job sends it together with the small parameters. On a grid it has a bucket of its own.
            exact = {"select": "none", "reselect": "none", "codec_up": "raw+raw", "codec_down": "raw+raw"}
            together = plan.job == {"select": "none"} and not self._on_grid
            tensors.append(library.Tensor(FLAG, 1, **({} if together else exact)))
        self._session = library.Session(library.JobConfig(**self._job, **plan.job),
                                        library.WorkerConfig(**self._worker), tensors)
        entries = sum(tensor.dimension for tensor in plan.tensors)
        verdict = Verdict(advise, entries, self.world_size, shards, link_rate)
        self._report = Report(self._session, entries, self._summary_every, self._tensorboard, self._loss_scale, verdict)
        self._exchange = Exchange(self._session, self._places, self._residuals, self._loss_scale, self._report,
                                  self._timeout, flag_has_rest=self._on_grid or self._has_momentum(),
                                  count_copied=self._count_copied)
        if self._sharded is not None:
            self._sums = ShardedSums(self._exchange, self._sharded, self._job["combine"], self._count_copied)
        self._report.copied = self._exchange.copied
        self._end = leave_with(self, self._session, self._exchange)
        _log.info("job %s: rank %d of %d, %d parameters with %d entries; %s", self._job["name"], self.rank, self.world_size,
                  len(plan.tensors), entries, plan.dense_text())
        if self._loaded is not None:
            self._apply_loaded()

    def _apply_loaded(self):
        (step, residual, deferred, velocity, retained), self._loaded = self._loaded, None
        places = {name: place for name, place in self._places.items() if name != FLAG}
        wrong = [name for name in {**places, **residual}
                 if name not in places or name not in residual or residual[name].numel() != places[name].entries]
        if wrong:
            raise ValueError(f"the saved state is of another model: it differs in {', '.join(sorted(wrong))}")
        if any(bool(values.any()) for values in deferred.values()) and self._loss_scale is None:
            raise ValueError("the state has the update of a skipped step: give the State grad_scaler=, as before")
        if bool(velocity) != self._has_momentum():
            raise ValueError(f"the state has {'a' if velocity else 'no'} velocity, and this job has option momentum "
                             f"{self._job.get('momentum', 'none')}: give the State the momentum of the earlier job")
        self._exchange.give_all_back()
        forgotten = [name for name, place in places.items()
                     if name not in retained or not self._session.restore_retained(place.tensor, retained[name])]
        if forgotten and self._on_grid:
            _log.warning("job %s: the saved state has no thresholds and exponents for %s with these settings: the bits will not "
                         "be those of the earlier job", self._job["name"], ", ".join(sorted(forgotten)))
        if velocity or self._clips():
            velocities.replace(self._session, {name: (place.tensor, place.entries) for name, place in places.items()},
                               residual, velocity)
        else:
            for place in places.values():
                self._session.take_residual(place.tensor)
            self._residuals.replace(residual)
        if self._loss_scale is not None:
            self._loss_scale.load(deferred)
        self._first_step = step - self._exchange.steps

    def _clips(self):
        return float(self._job.get("clip") or 0) != 0

    def _has_momentum(self):
        return str(self._job.get("momentum", "none")) != "none"

    def _at_the_end_of_backward(self, call):
        """Has the backward pass call a function before DDP waits: an error keeps its type, and Ctrl-C ends a wait.

        Returns  False where no backward pass runs.
        """
        try:
            torch.autograd.Variable._execution_engine.queue_callback(call)
        except RuntimeError:
            return False
        return True


def _raise(error):
    raise error


class _StateElsewhere:
    """Takes the place of a State in a saved model, whose list of hooks has one."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError("a State belongs to the process that made it, and a saved model has none: make another one")
