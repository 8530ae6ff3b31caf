#!/usr/bin/python3
"""[GSpar18, figure 4]: a CNN of three layers trained with Adam at several densities, loss against epochs and bytes.

    tests/bench/papers/gspar_fig4.py [--quick] [--out FOLDER] [--programs FOLDER]

The paper's network (3x3 convolutions, batch normalisation, a dense layer of 256, Adam) on the MNIST digits in place of
CIFAR-10. There are 4 workers of 32 samples, unbiased and without residuals. GSpar's probabilities are of the whole
gradient, 2 iterations.
"""

import networks
from experiment import Experiment, Workers, np, panels, table

WORKERS, BATCH, STEP_SIZE = 4, 32, 0.002
DENSITIES = [0.1, 0.05, 0.02, 0.004]
CHANNELS = [24, 32]


def run(here, channels, select, codec, unbiased, epochs, steps_of_epoch):
    torch = networks.torch
    torch.manual_seed(here.seed)
    model = networks.GsparCnn(channels)
    n = networks.size(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=STEP_SIZE)
    data, held_out = networks.digits()
    draw = np.random.default_rng(here.seed)
    points, losses = [], []
    with Workers(here, WORKERS, n, select, codec, unbiased, keep_rest=False) as workers:
        for step in range(1, epochs * steps_of_epoch + 1):
            gradients = []
            for _ in range(WORKERS):
                loss = networks.cross_entropy(model, data, torch.from_numpy(draw.integers(0, networks.TRAINED_ON, BATCH)))
                gradients.append(networks.gradient(model, loss))
                losses.append(loss.item())
            networks.set_gradient(model, workers.exchange(gradients))
            optimizer.step()
            if step % max(1, steps_of_epoch // 4) == 0:
                points.append((step / steps_of_epoch, workers.totals["container_bytes"] / WORKERS, float(np.mean(losses))))
                losses = []
        return {"channels": channels, "n": n, "points": points, "loss": points[-1][2], "accuracy": networks.accuracy(model, held_out),
                "density": workers.mean("decoded") / n, "bytes": workers.mean("container_bytes"), "dense_bytes": 4 * n}


def main():
    here = Experiment("gspar_fig4", "GSpar: a CNN at several densities", "[GSpar18, 4.1, figure 4]")
    epochs, steps_of_epoch = (1, 4) if here.quick else (2, 62)
    codec = "adaptive+gspar_hybrid"
    texts = here.known([(f"gspar {density:g}", f"gspar:{density}", codec, True) for density in DENSITIES])
    if not texts:
        texts = here.known([(f"gspar {density:g}", f"gspar:{density}", "adaptive+raw", True) for density in DENSITIES])
    texts += here.known([("uniform 0.1", "uniform:0.1", "adaptive+raw", True)])
    rows = []
    figure, axes = panels(2, 2, width=5.2, height=3.4)
    for line, channels in enumerate(CHANNELS[:1] if here.quick else CHANNELS):
        for name, select, own_codec, unbiased in [("baseline", "dense", "raw+raw", False)] + texts:
            row = {"method": name, **run(here, channels, select, own_codec, unbiased, epochs, steps_of_epoch)}
            rows.append(row)
            seen, sent, losses = zip(*row["points"])
            axes[line][0].semilogy(seen, losses, "o-", ms=3, lw=1.2, label=name)
            axes[line][1].loglog(np.array(sent) / 1e6, losses, "o-", ms=3, lw=1.2, label=name)
        axes[line][0].set(xlabel="epochs", ylabel="training loss", title=f"{channels} channels, {rows[-1]['n']:,} parameters")
        axes[line][1].set(xlabel="MB a worker has sent", title=f"{channels} channels")
        axes[line][0].legend(fontsize=7)
    table(rows, [("method", "", "s"), ("channels", "channels", "d"), ("density", "density", ".4f"), ("bytes", "bytes a step", ".0f"),
                 ("loss", "loss", ".4f"), ("accuracy", "held-out accuracy", ".4f")])
    base = {row["channels"]: row for row in rows if row["method"] == "baseline"}
    words = [f"{row['method']} ({row['channels']} channels) loss {row['loss']:.3f}, accuracy {row['accuracy']:.3f}, "
             f"1/{row['dense_bytes'] / row['bytes']:.0f} of the bytes" for row in rows if row["method"].startswith("gspar")]
    here.compare("sparsification slows training only slightly; it converges even at a density of about 0.004",
                 "; ".join(words) + "; baseline " + ", ".join(f"loss {row['loss']:.3f}, accuracy {row['accuracy']:.3f}" for row in base.values()),
                 "two epochs of an easy task, one run of each. Adam's step size is 0.002 for the paper's 0.02: there the baseline is behind "
                 "after an epoch")
    figure.suptitle("[GSpar18, figure 4]: CNN with Adam, 4 workers", fontsize=10)
    here.finish(figure, {"workers": WORKERS, "batch": BATCH, "epochs": epochs, "rows": rows})


if __name__ == "__main__":
    main()
