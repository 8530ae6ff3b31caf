#!/usr/bin/env python3
"""StoreOptimizer and StoreEmbedding over real shards: torch.optim's own optimizers, on one or two ranks, are the oracle.

    torch_store_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import copy
import gc
import io
import sys
import threading
import unittest
from unittest import mock

import torch_required  # first: skips where PyTorch is absent

import torch
from torch import nn

from in_threads import in_threads
from torch_shards import Shards, metrics_of

if not torch_required.BUILT:
    print("skipped: the package millrace is not built", file=sys.stderr)
    sys.exit(77)

import millrace  # noqa: E402
from millrace.torch.store_embedding import initial_values  # noqa: E402

STEPS = 6
# Each rule with torch.optim's optimizer of the same rule, on dense gradients.
RULES = (("sgd:0.1", lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
         ("momentum:0.05:0.8", lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.8)),
         ("adagrad:0.1", lambda parameters: torch.optim.Adagrad(parameters, lr=0.1)),
         ("adam:0.01", lambda parameters: torch.optim.Adam(parameters, lr=0.01)))
# The same for gradients of embeddings. torch.optim.SGD with momentum moves rows without a gradient: it is no oracle here.
SPARSE_RULES = (RULES[0], RULES[2], ("adam:0.01", lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.01)))


def network():
    """Returns a network whose gradients have no zeros: the shards' momentum and adam are lazy there."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


class Words(nn.Module):
    """A table, torch's own or the shards', in front of a fixed layer."""

    def __init__(self, table):
        super().__init__()
        self.table = table
        self.register_buffer("weights", torch.linspace(-1, 1, 4))

    def forward(self, words):
        return ((self.table(words) @ self.weights).sum(1) - 1).square().mean()


def own_table(rows):
    """Returns torch's table of zeros, whose gradients are sparse."""
    table = nn.Embedding(rows, 4, sparse=True)
    nn.init.zeros_(table.weight)
    return table


def batch(rank, step):
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(100 * step + rank))


def words(rank, step, rows=50):
    return torch.randint(0, rows, (6, 3), generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(model, inputs):
    return model(inputs).square().sum() if inputs.is_floating_point() else model(inputs)


def reference(model, optimizer, inputs, ranks=1):
    """Trains a copy by torch.optim, with the mean of the ranks' gradients. Returns it."""
    model = copy.deepcopy(model)
    optimizer = optimizer(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(ranks):
            (loss_of(model, inputs(rank, step)) / ranks).backward()
        optimizer.step()
    return model


class WithShards(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shards = Shards()

    @classmethod
    def tearDownClass(cls):
        cls.shards.stop()

    def optimizer(self, *arguments, **options):
        made = self.optimizer_alone(*arguments, **options)
        self.addCleanup(made.close)
        return made

    def optimizer_alone(self, params, store, rank=0, ranks=1, **options):
        """Returns a StoreOptimizer that the test does not keep alive."""
        options = {"job": self.id().rsplit(".", 1)[-1], **options}
        return millrace.torch.StoreOptimizer(params, self.shards.servers, store=store, rank=rank, world_size=ranks, **options)

    def assert_close(self, got, wanted):
        for (name, one), other in zip(got.named_parameters(), wanted.parameters()):
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")


def train(model, optimizer, inputs, rank=0, steps=STEPS, **backward):
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, inputs(rank, step)).backward(**backward)
        optimizer.step()


def scaler_of_cpu():
    """Returns torch's GradScaler with a scale in the host's memory. That of torch 1.13 asks for CUDA."""
    if hasattr(torch.amp, "GradScaler"):
        scaler = torch.amp.GradScaler("cpu")
    else:
        with mock.patch("torch.cuda.is_available", return_value=True):
            scaler = torch.cuda.amp.GradScaler()
    scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
    return scaler


class Optimizers(WithShards):
    def test_OneWorker_EqualsTorchsOptimizer(self):
        for store, oracle in RULES:
            with self.subTest(store):
                model = network()
                wanted = reference(model, oracle, batch)
                train(model, self.optimizer(model.named_parameters(), store, job=store), batch)
                self.assert_close(model, wanted)

    def test_TwoWorkers_EqualTheMeanOfTheirGradients(self):
        wanted = reference(network(), RULES[3][1], batch, ranks=2)
        models = [network() for _ in range(2)]
        in_threads(lambda rank: train(models[rank], self.optimizer(models[rank], "adam:0.01", rank, 2), batch, rank), 2)
        self.assert_close(models[0], wanted)
        for one, other in zip(models[0].parameters(), models[1].parameters()):
            self.assertTrue(torch.equal(one, other))

    def test_None_IsAsIfTheOptionWereNotGiven(self):
        wanted = reference(network(), RULES[0][1], batch, ranks=2)
        models = [network() for _ in range(2)]
        options = dict.fromkeys(("select", "store_begin", "combine", "mode"))
        in_threads(lambda rank: train(models[rank], self.optimizer(models[rank], "sgd:0.1", rank, 2, **options), batch, rank), 2)
        self.assert_close(models[0], wanted)

    def test_FirstValues_AreThoseOfRankZero(self):
        models = [network(), nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))]
        in_threads(lambda rank: self.optimizer(models[rank], "sgd:0.1", rank, 2), 2)
        for mine, first, before in zip(models[1].parameters(), models[0].parameters(), network().parameters()):
            self.assertTrue(torch.equal(mine, first) and torch.equal(first, before))

    def test_SparseGradients_TravelAsRowsAndEqualTorchs(self):
        for store, oracle in SPARSE_RULES:
            with self.subTest(store):
                model = Words(own_table(50))
                wanted = reference(model, oracle, words)
                train(model, self.optimizer(model, store, job=f"sparse {store}"), words)
                self.assert_close(model, wanted)

    def test_Http_HasTheMetricsOfTheParametersAndOfTablesAlone(self):
        for name, model, inputs in (("parameters", network(), batch), ("tables", Words(millrace.torch.StoreEmbedding(50, 4)), words)):
            with self.subTest(name):
                optimizer = self.optimizer(model, "sgd:0.1", job=name, http="127.0.0.1:0")
                train(model, optimizer, inputs)
                self.assertIn("millrace_worker_steps_total{", metrics_of(optimizer.session or optimizer.table_session))

    def test_SparseGradients_CostBytesByTheirRows(self):
        model = Words(own_table(100_000))
        optimizer = self.optimizer(model, "sgd:0.1")
        before = optimizer.session.stats()
        train(model, optimizer, words)
        stats = optimizer.session.stats()
        self.assertEqual(stats.tensors[0].entries_sent, sum(4 * len(words(0, step).unique()) for step in range(STEPS)))
        # Dense steps would send 1.6 MB each.
        self.assertLess(stats.bytes_up + stats.bytes_down - before.bytes_up - before.bytes_down, 100_000)

    def test_PartialSelection_KeepsTheRestForLaterSteps(self):
        model = network()
        optimizer = self.optimizer(model, "sgd:0.02", select="topk:0.2", fuse_below=0)
        inputs = batch(0, 0)
        for step in range(40):
            optimizer.zero_grad()
            loss = loss_of(model, inputs)
            loss.backward()
            optimizer.step()
            first = loss.item() if step == 0 else first
        self.assertLess(loss.item(), first / 20)
        pulled = torch.empty(35)
        optimizer.session.pull("0.weight", pulled)
        self.assertTrue(torch.equal(pulled.view(7, 5), model[0].weight.detach()))  # though it pulled only what changed

    def test_Closure_ComputesTheLossWithGradients(self):
        model = network()
        optimizer = self.optimizer(model.parameters(), "sgd:0.1")

        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, batch(0, 0))
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(3)]
        self.assertGreater(losses[0], losses[2])
        self.assertEqual(set(optimizer.param_groups[0]), {"params", "lr"})

    def test_ParametersWithoutGradient_KeepTheirValues(self):
        model = network()
        model[0].requires_grad_(False)
        before = copy.deepcopy(model)
        optimizer = self.optimizer(model, "momentum:0.1")
        loss = (model(batch(0, 0))[:, 0] * 0 + model[2].bias.sum()).sum()
        model[2].weight.grad = None
        loss.backward()
        model[2].weight.grad = None  # this rank has none, though others may
        optimizer.step()
        for name, parameter in model.named_parameters():
            self.assertEqual(torch.equal(parameter, before.get_parameter(name)), name != "2.bias", name)

    def test_GradientsWithAGraph_ArePushed(self):
        model, table = network(), Words(millrace.torch.StoreEmbedding(50, 4))
        train(model, self.optimizer(model, "sgd:0.1", job="dense graph"), batch, create_graph=True)
        self.assert_close(model, reference(network(), RULES[0][1], batch))
        train(table, self.optimizer(table, "sgd:0.1", job="table graph"), words, create_graph=True)
        wanted = reference(Words(own_table(50)), RULES[0][1], words).table.weight.detach()
        torch.testing.assert_close(table.table.pull(torch.arange(50)), wanted, rtol=2e-5, atol=2e-6)

    def test_HalfPrecision_HoldsTheShardsValuesRounded(self):
        parameter = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.bfloat16))
        optimizer = self.optimizer([parameter], "sgd:0.001")
        for _ in range(10):
            parameter.grad = torch.ones(2, dtype=torch.bfloat16)
            optimizer.step()
        torch.testing.assert_close(parameter.detach(), torch.tensor([0.99, -2.01]).bfloat16())  # bf16 alone would stay at -2


class Refusals(WithShards):
    def refuses(self, sentence, call, error=ValueError):
        with self.assertRaisesRegex(error, sentence):
            call()

    def test_ValuesThatTheRuleLacks_AreRefused(self):
        one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        groups = [{"params": [one]}, {"params": [two], "lr": 0.2}]
        self.refuses("lr 0.2, and the shards' rule is sgd:0.1: it is one for all", lambda: self.optimizer(groups, "sgd:0.1"))
        groups[1] = {"params": [two], "weight_decay": 0.1}
        self.refuses("has no weight_decay", lambda: self.optimizer(groups, "sgd:0.1"))
        self.refuses("none of sgd:RATE", lambda: self.optimizer([one], "none"))
        self.refuses("two parameters have the name 'a'", lambda: self.optimizer([("a", one), ("a", two)], "sgd:0.1"))
        self.refuses("contiguous", lambda: self.optimizer([nn.Parameter(torch.ones(2, 3).T)], "sgd:0.1"), TypeError)
        self.refuses("nothing to train", lambda: self.optimizer([torch.ones(2)], "sgd:0.1"))

    def test_SavePath_IsRefused(self):
        self.refuses(r"save_path= would.*call state_dict\(\)", lambda: self.optimizer(network(), "sgd:0.1", save_path="file"))

    def test_GradScaler_IsRefused(self):
        model = network()
        optimizer = self.optimizer(model, "sgd:0.1")
        loss_of(model, batch(0, 0)).backward()
        self.refuses("takes no GradScaler.*bf16", lambda: scaler_of_cpu().step(optimizer))
        self.assertEqual(optimizer._dense.steps, 0)
        self.assertIsNone(optimizer._broken)

    def test_ChangesDuringTheJob_AreRefused(self):
        parameter = nn.Parameter(torch.ones(2))
        optimizer = self.optimizer([parameter], "sgd:0.1")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        parameter.grad = torch.ones(2)
        optimizer.step()
        self.refuses("of a job of its own", lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}))
        scheduler.step()
        self.refuses("does not change", optimizer.step)


class States(WithShards):
    def saved(self, optimizer):
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        return torch.load(file)

    def test_ResidualOfASavedState_ContinuesToTheSameBits(self):
        options = {"select": "topk:0.3", "fuse_below": 0}
        straight = network()
        train(straight, self.optimizer(straight, "sgd:0.1", job="straight", **options), batch)
        model = network()
        optimizer = self.optimizer(model, "sgd:0.1", job="first", **options)
        train(model, optimizer, batch, steps=3)
        self.saved(optimizer)  # reading a state changes nothing
        state = self.saved(optimizer)
        self.assertEqual(state["millrace"]["steps"], 3)
        self.assertIn("0.weight", state["millrace"]["residual"]["0"])
        optimizer.finish()
        again = self.optimizer(model, "sgd:0.1", job="second", **options)
        again.load_state_dict(state)
        train(model, again, lambda rank, step: batch(rank, step + 3), steps=STEPS - 3)
        for one, other in zip(model.parameters(), straight.parameters()):
            self.assertTrue(torch.equal(one, other))

    def test_StatesThatDoNotFit_AreRefused(self):
        model = network()
        optimizer = self.optimizer(model, "adam:0.01", job="first")
        train(model, optimizer, batch, steps=1)
        state = self.saved(optimizer)
        other = self.optimizer(model, "adam:0.01", job="second")
        with self.assertRaisesRegex(ValueError, 'adam after 1 steps.*store_begin="saved"'):
            other.load_state_dict(state)
        with self.assertRaisesRegex(ValueError, "rule adam:0.01.*this job's is sgd:0.1"):
            self.optimizer(model, "sgd:0.1", job="third").load_state_dict(state)
        with self.assertRaisesRegex(ValueError, "no state of format 1"):
            optimizer.load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1).state_dict())

    def test_ResidualsThatDoNotFit_AreRefusedAndChangeNothing(self):
        model = network()
        optimizer = self.optimizer(model, "sgd:0.1", select="topk:0.3", fuse_below=0)
        train(model, optimizer, batch, steps=1)
        state = self.saved(optimizer)
        pair = torch.tensor([34]), torch.tensor([1.0])
        for workers, residual, sentence in ((1, {"1": {}}, "of rank 1, and this is rank 0"), (2, {"1": {"0.weight": pair}}, "of 2 workers"),
                                            (1, {"0": {"0.renamed": pair}}, "differs in 0.renamed"),
                                            (1, {"0": {"0.weight": (pair[0] + 1, pair[1])}}, "differs in 0.weight")):  # it has 35 entries
            with self.subTest(sentence), self.assertRaisesRegex(ValueError, sentence):
                optimizer.load_state_dict({**state, "millrace": {**state["millrace"], "workers": workers, "residual": residual}})
        kept, before = optimizer.state_dict()["millrace"]["residual"]["0"], state["millrace"]["residual"]["0"]
        self.assertEqual(kept.keys(), before.keys())
        for name, (indices, values) in before.items():
            self.assertTrue(torch.equal(kept[name][0], indices) and torch.equal(kept[name][1], values), name)


class Ends(WithShards):
    def test_OptimizerOfAFunction_IsFinishedWhenItReturns(self):
        has_left = threading.Event()

        def work(rank):
            model = network()
            optimizer = self.optimizer_alone(model, "sgd:0.1", rank, 2, workers_min=2)
            train(model, optimizer, batch, rank, steps=2)
            if rank == 1:
                self.assertTrue(has_left.wait(120))
                optimizer.finish(60)

        def run(rank):
            work(rank)
            has_left.set()

        with mock.patch.object(millrace.Session, "finish", autospec=True, side_effect=millrace.Session.finish) as finish:
            in_threads(run, 2)
        self.assertEqual(finish.call_count, 2)

    def test_OptimizerThatIsNotMade_LeavesItsJobAsFailed(self):
        late = mock.patch.object(millrace.torch.StoreOptimizer, "_take_first_values", side_effect=TimeoutError)
        with mock.patch.object(millrace.Session, "finish") as finish:
            with late, self.assertRaises(TimeoutError):
                self.optimizer_alone(network(), "sgd:0.1")
            gc.collect()
        finish.assert_not_called()


class Failures(WithShards):
    def test_StepThatFailsHalfWay_LeavesTheJobs(self):
        for error in (KeyboardInterrupt(), millrace.JobError("late", "timeout")):
            with self.subTest(repr(error)):
                model = network()
                optimizer = self.optimizer(model, "sgd:0.1", job=f"half {type(error).__name__}")
                train(model, optimizer, batch, steps=1)
                loss_of(model, batch(0, 1)).backward()
                with mock.patch.object(optimizer._dense, "wait", side_effect=error), self.assertRaises(type(error)):
                    optimizer.step()
                for call in (optimizer.step, optimizer.state_dict, lambda: optimizer.load_state_dict({}), optimizer.finish):
                    with self.assertRaisesRegex(RuntimeError, "has left its jobs"):
                        call()
                optimizer.close()

    def test_StepThatFailsBeforeItsFirstPush_MayBeRepeated(self):
        model = network()
        optimizer = self.optimizer(model, "sgd:0.1")
        loss_of(model, batch(0, 0)).backward()
        first = next(iter(optimizer._trained.values()))
        first.grad.fill_(float("nan"))
        with self.assertRaisesRegex(millrace.JobError, "NaN"):
            optimizer.step()
        self.assertEqual(optimizer._dense.steps, 0)
        train(model, optimizer, batch)
        self.assert_close(model, reference(network(), RULES[0][1], batch))

    def test_GradientOfATable_StaysWhereItsPushFails(self):
        table = millrace.torch.StoreEmbedding(10, 1)
        optimizer = self.optimizer([], "sgd:1", tables={"t": table})
        table(torch.tensor([1, 4])).sum().backward()
        late = millrace.JobError("late", "timeout")
        with mock.patch.object(optimizer.table_session, "push_rows", side_effect=late), self.assertRaises(millrace.JobError):
            optimizer.step()
        optimizer.step()
        self.assertEqual(table.pull(torch.tensor([1, 2, 4])).flatten().tolist(), [-1, 0, -1])

    def test_GradientOfAnotherForm_PushesNothing(self):
        model = network()
        optimizer = self.optimizer(model, "sgd:0.1")
        loss_of(model, batch(0, 0)).backward()
        model[2].weight.grad = model[2].weight.grad.to_sparse()
        with self.assertRaisesRegex(TypeError, "'2.weight' has 2 sparse dimensions"):
            optimizer.step()
        self.assertEqual(optimizer._dense.steps, 0)
        train(model, optimizer, batch)
        self.assert_close(model, reference(network(), RULES[0][1], batch))

    def test_ParameterThatIsUnfrozenLater_IsNamed(self):
        model = network()
        model[0].requires_grad_(False)
        optimizer = self.optimizer(model, "sgd:0.1")
        train(model, optimizer, batch, steps=1)
        model[0].requires_grad_(True)
        loss_of(model, batch(0, 1)).backward()
        with self.assertRaisesRegex(ValueError, "'0.weight' needed no gradient"):
            optimizer.step()
        model[0].requires_grad_(False)
        optimizer.step()

    def test_Close_EndsPullsThatWait(self):
        optimizer = self.optimizer(network(), "sgd:0.1")
        closed = threading.Event()
        with mock.patch.object(optimizer._dense, "close", side_effect=closed.set):
            pull = optimizer._pulls.submit(closed.wait, 60)
            optimizer.close()
        self.assertTrue(pull.result(), "close() has waited for a pull before it left the job")


class Tables(WithShards):
    def test_OneWorker_EqualsTorchsEmbedding(self):
        for store, oracle in SPARSE_RULES:
            with self.subTest(store):
                wanted = reference(Words(own_table(50)), oracle, words)
                model = Words(millrace.torch.StoreEmbedding(50, 4))
                train(model, self.optimizer(model, store, job=f"table {store}"), words)
                torch.testing.assert_close(model.table.pull(torch.arange(50)), wanted.table.weight.detach(), rtol=2e-5, atol=2e-6)

    def test_TwoWorkers_EqualTheMeanOfTheirGradients(self):
        wanted = reference(Words(own_table(50)), RULES[2][1], words, ranks=2)
        models = [Words(millrace.torch.StoreEmbedding(50, 4)) for _ in range(2)]
        in_threads(lambda rank: train(models[rank], self.optimizer(models[rank], "adagrad:0.1", rank, 2), words, rank), 2)
        for model in models:
            torch.testing.assert_close(model.table.pull(torch.arange(50)), wanted.table.weight.detach(), rtol=2e-5, atol=2e-6)

    def test_LargeTable_CostsBytesByTheRows(self):
        model = Words(millrace.torch.StoreEmbedding(1 << 22, 4))
        optimizer = self.optimizer(model, "sgd:0.1")
        train(model, optimizer, lambda rank, step: words(rank, step, 1 << 22))
        stats = optimizer.table_session.stats()
        self.assertIsNone(optimizer.session)
        self.assertEqual(stats.tensors[0].entries_sent, STEPS * 6 * 3 * 4)
        self.assertLess(stats.bytes_up + stats.bytes_down, 100_000)  # of tables of 64 MB

    def test_DenseLayerAndTable_TrainTogether(self):
        torch.manual_seed(4)
        layer = nn.Linear(4, 1)
        table = millrace.torch.StoreEmbedding(50, 4, initial_scale=0.1)
        model = nn.Sequential(table, layer)
        optimizer = self.optimizer(model, "adagrad:0.1")
        own = nn.Sequential(nn.Embedding(50, 4, sparse=True), copy.deepcopy(layer))
        with torch.no_grad():
            own[0].weight.copy_(table.pull(torch.arange(50)))
        self.assertLessEqual(own[0].weight.abs().max().item(), 0.1)
        self.assertGreater(own[0].weight.std().item(), 0.04)  # uniform in +-0.1: 0.058
        oracle = torch.optim.Adagrad(own.parameters(), lr=0.1)
        for step in range(STEPS):
            for net, opt in ((own, oracle), (model, optimizer)):
                opt.zero_grad()
                (net(words(0, step)).square().sum() + net(words(1, step)).sum()).backward()  # two passes of the table
                opt.step()
        torch.testing.assert_close(table.pull(torch.arange(50)), own[0].weight.detach(), rtol=2e-5, atol=2e-6)
        torch.testing.assert_close(layer.weight, own[1].weight, rtol=2e-5, atol=2e-6)

    def test_GradientsOfPasses_AreAddedUntilTheyAreDropped(self):
        table = millrace.torch.StoreEmbedding(10, 2)
        optimizer = self.optimizer([], "sgd:1", tables={"t": table})
        table(torch.tensor([3, 3])).sum().backward()
        optimizer.zero_grad()
        for _ in range(2):
            table(torch.tensor([[1, 2], [2, 9]])).sum().backward()
        with torch.no_grad():
            self.assertFalse(table(torch.tensor([1])).requires_grad)
        table(torch.tensor([5])).sum()  # never differentiated
        optimizer.step()
        wanted = torch.zeros(10, 2)
        wanted[torch.tensor([1, 2, 9])] = torch.tensor([[-2.0], [-4.0], [-2.0]])
        self.assertTrue(torch.equal(table.pull(torch.arange(10)), wanted))
        optimizer.step()  # without a gradient
        self.assertTrue(torch.equal(table.pull(torch.arange(10)), wanted))

    def test_AnySeed_GivesInitialValues(self):
        table = millrace.torch.StoreEmbedding(50, 4, initial_scale=0.1, seed=2**31)
        self.optimizer([], "sgd:1", tables={"t": table})
        self.assertLessEqual(float(table(torch.arange(50)).abs().max()), 0.1)
        indices = torch.arange(200)
        seeds = {seed: initial_values(indices, seed, 0.1) for seed in (0, 1, 2**31, 2**32 - 1)}
        self.assertEqual(len({tuple(values.tolist()) for values in seeds.values()}), len(seeds))
        for seed, same in ((2**63, 0), (-1, 2**32 - 1), (2**64 + 1, 1)):
            self.assertTrue(torch.equal(initial_values(indices, seed, 0.1), seeds[same]), seed)

    def test_BadUses_AreRefused(self):
        table = millrace.torch.StoreEmbedding(10, 2)
        with self.assertRaisesRegex(RuntimeError, "no StoreOptimizer has this table"):
            table(torch.tensor([1]))
        with self.assertRaisesRegex(ValueError, "divide the rows"):
            millrace.torch.StoreEmbedding(1 << 30, 8)
        self.optimizer([], "sgd:1", tables={"t": table})
        for rows in ([10], [-1, 3]):
            with self.assertRaisesRegex(IndexError, "of a table of 10"):
                table(torch.tensor(rows))
        self.assertEqual(table(torch.empty(0, 2, dtype=torch.long)).shape, (0, 2, 2))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
