#!/usr/bin/python3
"""[SparCML19, figures 1 and 7]: how many indices the sum of P sparse vectors has, of real gradients and of uniform indices.

    tests/bench/papers/sparcml_fig1_7.py [--quick] [--out FOLDER] [--programs FOLDER]

Left (figure 1): gradients of one model, a mini-batch a node, each cut to its largest entries by topk; the density of the sum. The paper
has ResNet-20 on CIFAR-10 at epoch 5; here it is the CNN of the traces on digits after some steps of SGD, and the LSTM. Right (figure 7):
N = 512 and uniform indices, counted against the closed form N (1 - (1 - k/N)^P), which is the paper's sum over binomials.
"""

import networks
from experiment import Experiment, Replay, np, panels, table
from oktopk_fig4_6 import Cnn, Lstm

N_UNIFORM = 512
DENSITIES = [0.001, 0.01, 0.05, 0.1, 0.2]


def gradients_of(task, steps, count):
    """[count][n]: gradients of a model that was trained for some steps, of as many mini-batches."""
    for _ in range(steps):
        networks.descend(task.model, task.gradient()[1])
    return [task.gradient()[1] for _ in range(count)]


def fill_in(here, gradients, nodes):
    """{density: [density of the sum of the first P, by P]}."""
    n = len(gradients[0])
    result = {}
    for density in DENSITIES:
        reached, by_nodes = np.zeros(n, bool), []
        with Replay(here.folder, n, f"topk:{density}") as replay:
            for count, gradient in enumerate(gradients, start=1):
                reached |= replay.step(gradient)[0] != 0
                if count in nodes:
                    by_nodes.append(float(reached.mean()))
        result[density] = by_nodes
    return result


def closed_form(n, k, ranks):
    return n * (1 - (1 - k / n) ** ranks)


def counted(draw, n, k, ranks, repeats):
    """Mean size of the union of `ranks` sets, each of k samples drawn without replacement."""
    sizes = []
    for _ in range(repeats):
        reached = np.zeros(n, bool)
        for _ in range(ranks):
            reached[draw.choice(n, k, replace=False)] = True
        sizes.append(reached.sum())
    return float(np.mean(sizes))


def main():
    here = Experiment("sparcml_fig1_7", "SparCML: fill-in of the reduced result", "[SparCML19, 5.2, appendix B.1, figures 1 and 7]")
    nodes = [1, 2, 4, 8] if here.quick else [1, 2, 4, 8, 16, 32, 64, 128]
    draw = np.random.default_rng(here.seed)
    figure, axes = panels(1, 3, width=4.6, height=3.6)
    rows, result = [], {}
    for axis, task, steps in ((axes[0][0], Cnn(here.seed), 200), (axes[0][1], Lstm(here.seed), 60)):
        by_density = fill_in(here, gradients_of(task, 2 if here.quick else steps, nodes[-1]), nodes)
        result[task.name] = by_density
        for density, values in by_density.items():
            axis.plot(nodes, [100 * value for value in values], "o-", ms=3, lw=1.2, label=f"{100 * density:g} % a node")
            for count, value in zip(nodes, values):
                if count in (8, nodes[-1]):
                    rows.append({"what": task.name, "nodes": count, "density": density, "sum": value, "uniform": closed_form(1, density, count)})
        axis.set(title=f"figure 1: {task.name}", xlabel="nodes", ylabel="density of the sum, %", xscale="log", ylim=(0, 100))
        axis.set_xticks(nodes, [str(count) for count in nodes])
        axis.minorticks_off()
        axis.legend(fontsize=7)
    worst, uniform = 0.0, {}
    for k in (1, 4, 16, 64):
        exact = [closed_form(N_UNIFORM, k, count) for count in nodes]
        seen = [counted(draw, N_UNIFORM, k, count, 20 if here.quick else 400) for count in nodes]
        uniform[k] = {"closed_form": exact, "counted": seen}
        worst = max(worst, *(abs(a / b - 1) for a, b in zip(seen, exact)))
        line, = axes[0][2].plot(nodes, exact, lw=1.2, label=f"k = {k}")
        axes[0][2].plot(nodes, seen, "x", ms=5, color=line.get_color())
    axes[0][2].set(title="figure 7: uniform, N = 512", xlabel="nodes", ylabel="indices of the sum", xscale="log")
    axes[0][2].set_xticks(nodes, [str(count) for count in nodes])
    axes[0][2].minorticks_off()
    axes[0][2].legend(fontsize=7, title="line: formula, x: counted", title_fontsize=7)
    table(rows, [("what", "", "s"), ("nodes", "nodes", "d"), ("density", "a node", ".3f"), ("sum", "sum", ".4f"),
                 ("uniform", "if uniform", ".4f")])
    last = nodes[-1]
    of = {(row["what"], row["nodes"], row["density"]): row["sum"] for row in rows}
    here.compare("figure 1: the sum is far denser than each node's part, and nearly dense from a few per cent a node on",
                 "; ".join(f"{name}: {last} nodes of 1 % make {of[name, last, 0.01]:.1%}, of 10 % {of[name, last, 0.1]:.1%}"
                           for name in (Cnn.name, Lstm.name)),
                 "gradients of one model agree on where they are large: fewer than uniform indices would make")
    here.compare("figure 7: E[K] = N sum (-1)^(i-1) binom(P, i) (k/N)^i", f"counted within {worst:.1%} of it, k from 1 to 64",
                 "the sum is N (1 - (1 - k/N)^P): exact for k drawn without replacement at each node as well")
    here.finish(figure, {"nodes": nodes, "rows": rows, "fill_in": result, "uniform": uniform})


if __name__ == "__main__":
    main()
