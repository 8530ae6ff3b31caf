#!/usr/bin/python3
"""[DeepReduce21, figure 8]: convergence of value codecs on top-r: polynomial fit, double exponential fit, QSGD, beside plain top-r and dense.

    tests/bench/papers/deepreduce_fig8.py [--quick] [--out FOLDER] [--programs FOLDER]

A CNN of 25,034 parameters on the MNIST digits, 4 workers with error feedback, 1 %; raw indices, so that the bytes differ by the values'
alone.
"""

import networks
from experiment import Experiment, Workers, np, panels, table

WORKERS, RATE, DENSITY = 4, 0.3, 0.01
CODECS = [("top-r", "raw+raw"), ("fit_poly", "raw+fit_poly"), ("fit_dexp", "raw+fit_dexp"), ("qsgd4", "raw+qsgd4"),
          ("qsgd8", "raw+qsgd8"), ("deflate", "raw+deflate"), ("sketchml", "raw+sketchml")]


def run(here, select, codec, steps, seeds):
    curves, rows = [], []
    for seed in seeds:
        networks.torch.manual_seed(seed)
        model = networks.SmallCnn()
        here.seed = seed
        with Workers(here, WORKERS, networks.size(model), select, codec) as workers:
            curves.append(networks.train(model, workers.exchange, WORKERS, steps, RATE, seed, every=max(2, steps // 10)))
            rows.append({name: workers.mean(name) for name in ("container_bytes", "index_bytes", "value_bytes", "encode_ns", "decode_ns")})
    points = [(step, float(np.mean([curve[at][1] for curve in curves])), float(np.mean([curve[at][2] for curve in curves])))
              for at, (step, _, _) in enumerate(curves[0])]
    return {"points": points, "accuracy": points[-1][2], "area": float(np.mean([point[2] for point in points])),
            **{name: float(np.mean([row[name] for row in rows])) for name in rows[0]}}


def compare(here, rows):
    of = {row["method"]: row for row in rows}
    plain = of["top-r"]
    def saved(name):
        return f"{100 * (1 - of[name]['container_bytes'] / plain['container_bytes']):.0f} %"
    fits = [name for name in ("fit_poly", "fit_dexp") if name in of]
    if not fits:
        return
    here.compare("both fits reach the baseline's accuracy",
                 ", ".join(f"{name} {100 * row['accuracy']:.1f} %" for name, row in of.items()))
    here.compare("both converge in fewer steps than plain top-r; Fit-DExp slightly better than Fit-Poly",
                 "accuracy averaged over the run: " + ", ".join(f"{name} {100 * of[name]['area']:.1f} %" for name in ["top-r"] + fits))
    here.compare("Fit-DExp takes about 50 % off the output of top-r, Fit-Poly about 40 %", ", ".join(f"{name} {saved(name)}" for name in fits),
                 "251 entries: the map takes 8 bits of each, Fit-Poly's pieces 28 bytes each")
    if len(fits) == 2:
        here.compare("Fit-DExp is about 3.5 times slower than Fit-Poly",
                     f"encoding takes {of['fit_dexp']['encode_ns'] / of['fit_poly']['encode_ns']:.1f} times as long")


def main():
    here = Experiment("deepreduce_fig8", "DeepReduce: convergence of value codecs", "[DeepReduce21, 6.2, figure 8]")
    steps, seeds = (6, [1]) if here.quick else (500, [1])
    texts = here.known([(name, f"topk:{DENSITY}", codec, False) for name, codec in CODECS])
    rows = []
    for name, select, codec, _ in [("dense", "dense", "raw+raw", False)] + texts:
        rows.append({"method": name, **run(here, select, codec, steps, seeds)})
    table(rows, [("method", "", "s"), ("container_bytes", "bytes a step", ".0f"), ("value_bytes", "of values", ".0f"),
                 ("accuracy", "accuracy", ".4f"), ("area", "mean over the run", ".4f"), ("encode_ns", "encode ns", ".0f"),
                 ("decode_ns", "decode ns", ".0f")])
    figure, axes = panels(1, 2, width=5.2, height=3.8)
    for row in rows:
        at, losses, right = zip(*row["points"])
        style = "k-" if row["method"] == "dense" else "-"
        axes[0][0].plot(at, 100 * np.array(right), style, lw=1.2, label=row["method"])
        axes[0][1].semilogy(at, losses, style, lw=1.2, label=row["method"])
    axes[0][0].set(xlabel="step", ylabel="held-out accuracy, %")
    axes[0][1].set(xlabel="step", ylabel="training loss")
    axes[0][0].legend(fontsize=7)
    figure.suptitle("[DeepReduce21, figure 8]: value codecs on top-r (1 %)", fontsize=10)
    compare(here, rows)
    here.finish(figure, {"n": 25034, "workers": WORKERS, "steps": steps, "seeds": seeds, "rows": rows})


if __name__ == "__main__":
    main()
