#!/usr/bin/python3
"""[GSpar18, figures 1 to 3]: l2-regularised logistic regression on its synthetic generator, 4 workers, SGD and SVRG.

    tests/bench/papers/gspar_fig1_3.py [--quick] [--out FOLDER] [--programs FOLDER]

Figures 1 and 2: suboptimality against data passes of GSpar (greedy and closed form), uniform sampling and no sparsification; var x spa
of each. Figure 3: suboptimality against bytes, beside QSGD. Only the data's part of a gradient is sent; the regulariser's is known to
all (section 4). Step sizes are tuned for each curve.
"""

from experiment import Experiment, Replay, np, panels, plt, table

WORKERS, BATCH = 4, 8
PASSES_OF_TUNING = 0.5  # share of the passes that a step size is judged by
SPA = 0.1
COLOURS = {"baseline": "black", "gspar": "tab:blue", "gspar_closed": "tab:cyan", "uniform": "tab:orange", "qsgd2": "tab:green",
           "qsgd4": "tab:red", "qsgd8": "tab:purple", "gspar hybrid": "tab:brown", "gspar entropy": "tab:cyan"}


class Problem:
    """f(w) = mean log2(1 + exp(-b a.w)) + l2 |w|^2, its data drawn as section 4 says."""

    def __init__(self, c1, c2, n, d, l2, seed):
        draw = np.random.default_rng(seed)
        dense = draw.standard_normal((n, d))
        magnitude = draw.random(d)
        magnitude[magnitude <= c2] *= c1
        truth = draw.standard_normal(d)
        self.rows = dense * magnitude * np.sign(dense @ truth)[:, None]  # a_n b_n: only their product counts
        self.n, self.d, self.l2 = n, d, l2
        self.least = self.value(self.minimum())

    def value(self, w):
        return np.mean(np.logaddexp(0, -(self.rows @ w))) / np.log(2) + self.l2 * (w @ w)

    def gradient(self, w, samples=slice(None)):
        """Of the data's part."""
        rows = self.rows[samples]
        pull = -1 / (1 + np.exp(np.clip(rows @ w, -500, 500))) / np.log(2)
        return rows.T @ pull / len(rows)

    def minimum(self):
        """Newton's method with the inverse in the n rows' space, halved until it descends."""
        w = np.zeros(self.d)
        gram = self.rows @ self.rows.T
        for _ in range(60):
            gradient = self.gradient(w) + 2 * self.l2 * w
            if np.linalg.norm(gradient) < 1e-11:
                break
            share = 1 / (1 + np.exp(-np.clip(self.rows @ w, -500, 500)))
            weight = np.maximum(share * (1 - share), 1e-12) / np.log(2) / self.n
            inner = np.linalg.solve(gram + np.diag(2 * self.l2 / weight), self.rows @ gradient)
            step = (gradient - self.rows.T @ inner) / (2 * self.l2)
            size, now = 1.0, self.value(w)
            while self.value(w - size * step) > now and size > 1e-9:
                size /= 2
            w = w - size * step
        return w


def descend(problem, replay, kind, rate, passes, seed):
    """One run: (passes, bytes a worker, suboptimality) points, var and spa. kind "sgd": the rate falls as 1 / (1 + pass)."""
    draw = np.random.default_rng(seed)
    w, seen, sent = np.zeros(problem.d), 0.0, 0.0
    squares, kept, entries, count = 0.0, 0.0, 0.0, 0
    points = [(0.0, 0.0, problem.value(w) - problem.least)]
    steps = problem.n // (WORKERS * BATCH)
    while seen < passes:
        if kind == "svrg":
            anchor, full = w.copy(), problem.gradient(w)
            seen += 1
            sent += 4 * problem.d
        for _ in range(steps):
            total = np.zeros(problem.d)
            for _ in range(WORKERS):
                samples = draw.integers(0, problem.n, BATCH)
                gradient = problem.gradient(w, samples)
                if kind == "svrg":
                    gradient = gradient - problem.gradient(anchor, samples) + full
                if replay is None:
                    decoded, size, some = gradient, 4 * problem.d, problem.d
                else:
                    decoded, cost = replay.step(gradient)
                    size, some = cost["container_bytes"], cost["decoded"]
                squares += gradient @ gradient
                kept += float(decoded.astype(np.float64) @ decoded)
                entries += some / problem.d
                count += 1
                sent += size / WORKERS
                total += decoded
            now = rate / (1 + seen) if kind == "sgd" else rate
            w = w - now * (total / WORKERS + 2 * problem.l2 * w)
            seen += 1 / steps
        seen = round(seen)
        loss = problem.value(w) - problem.least
        points.append((seen, sent, loss))
        if not np.isfinite(loss) or loss > 50 * points[0][2]:
            break
    return {"points": points, "var": kept / squares, "spa": entries / count, "rate": rate}


def tuned(problem, opened, kind, passes, rates, seed):
    """The run with the step size that has come furthest after some of the passes."""
    def ends(rate):
        with_replay = opened()
        try:
            return descend(problem, with_replay, kind, rate, max(2, round(passes * PASSES_OF_TUNING)), seed)["points"][-1][2]
        finally:
            if with_replay is not None:
                with_replay.__exit__()
    losses = {rate: ends(rate) for rate in rates}
    best = min(losses, key=lambda rate: losses[rate] if np.isfinite(losses[rate]) else np.inf)
    replay = opened()
    try:
        return descend(problem, replay, kind, best, passes, seed)
    finally:
        if replay is not None:
            replay.__exit__()


def opener(experiment_, d, select, codec, unbiased):
    if select is None:
        return lambda: None
    return lambda: Replay(experiment_.folder, d, select, codec, unbiased, experiment_.seed)


def figure_of(experiment_, kind, problems, methods, passes, rates, number):
    figure, axes = panels(2, len(problems[0]), width=4.2, height=3.4)
    rows = []
    for line, of_l2 in enumerate(problems):
        for column, (label, problem) in enumerate(of_l2):
            axis = axes[line][column]
            for name, select, codec, unbiased in methods:
                run = tuned(problem, opener(experiment_, problem.d, select, codec, unbiased), kind, passes, rates, experiment_.seed)
                xs, _, ys = zip(*run["points"])
                text = f"{name}, var {run['var']:.2g} spa {run['spa']:.2g}"
                axis.semilogy(xs, np.maximum(ys, 1e-16), label=text, color=COLOURS[name], lw=1.4)
                rows.append({"kind": kind, "data": label, "l2": ("1/(10N)", "1/N")[line], "method": name, "var": run["var"],
                             "spa": run["spa"], "product": run["var"] * run["spa"], "rate": run["rate"], "end": run["points"][-1][2],
                             "points": run["points"]})
            axis.set_title(f"{label}, $\\lambda$ = {('1/(10N)', '1/N')[line]}", fontsize=9)
            axis.legend(fontsize=6.5)
    for axis in axes[-1]:
        axis.set_xlabel("data passes")
    for axis in axes[:, 0]:
        axis.set_ylabel("f(w) - min f")
    figure.suptitle(f"GSpar, figure {number}: {kind.upper()}, 4 workers", fontsize=10)
    table(rows, [("kind", "", "s"), ("data", "data", "s"), ("l2", "l2", "s"), ("method", "method", "s"), ("var", "var", ".2f"),
                 ("spa", "spa", ".3f"), ("product", "var x spa", ".3f"), ("rate", "step", ".3g"), ("end", "f - min f", ".2e")])
    return figure, rows


def figure3(experiment_, problems, methods, passes, rates):
    figure, axes = panels(2, len(problems[0]), width=4.6, height=3.4)
    rows = []
    for line, of_l2 in enumerate(problems):
        for column, (label, problem) in enumerate(of_l2):
            axis = axes[line][column]
            for name, select, codec, unbiased in methods:
                run = tuned(problem, opener(experiment_, problem.d, select, codec, unbiased), "sgd", passes, rates, experiment_.seed)
                _, sent, ys = zip(*run["points"])
                bits = 8 * sent[-1] / (problem.d * run["points"][-1][0] * problem.n / (WORKERS * BATCH))
                axis.semilogy(np.array(sent) / 1e3, np.maximum(ys, 1e-16), label=f"{name}, {bits:.2g} bits an entry", color=COLOURS[name],
                              lw=1.4)
                rows.append({"data": label, "l2": ("1/(10N)", "1/N")[line], "method": name, "bits": bits,
                             "rate": run["rate"], "end": ys[-1], "kbytes": sent[-1] / 1e3, "points": run["points"]})
            axis.set_title(f"{label}, $\\lambda$ = {('1/(10N)', '1/N')[line]}", fontsize=9)
            axis.set_xscale("log")
            axis.legend(fontsize=6.5)
    for axis in axes[-1]:
        axis.set_xlabel("kB a worker has sent, headers counted")
    for axis in axes[:, 0]:
        axis.set_ylabel("f(w) - min f")
    figure.suptitle("[GSpar18, figure 3]: SGD, bytes against QSGD", fontsize=10)
    for row in rows:
        same = [other for other in rows if other["data"] == row["data"] and other["l2"] == row["l2"] and other["method"] == "baseline"]
        target = 10 * max(same[0]["end"], 1e-12)
        reached = [sent for _, sent, loss in row["points"] if loss <= target]
        row["kbytes_to_target"] = reached[0] / 1e3 if reached else None
    table(rows, [("data", "data", "s"), ("l2", "l2", "s"), ("method", "method", "s"), ("bits", "bits/entry", ".2f"),
                 ("rate", "step", ".3g"), ("end", "f - min f", ".2e"), ("kbytes", "kB", ".0f"),
                 ("kbytes_to_target", "kB to 10 x baseline's end", ".0f")])
    return figure, rows


def compare(experiment_, sgd, svrg, bytes_rows):
    """Compares the paper's claims with the results."""
    def of(rows, name):
        return {(row["data"], row["l2"]): row for row in rows if row["method"] == name}
    greedy, uniform = of(sgd, "gspar"), of(sgd, "uniform")
    if greedy and uniform:
        shares = [greedy[key]["var"] / uniform[key]["var"] for key in greedy]
        better = sum(greedy[key]["end"] < uniform[key]["end"] for key in greedy)
        experiment_.compare("Figure 1: at one density GSpar has less variance than uniform sampling and converges much faster",
                            f"var of GSpar over var of UniSp {min(shares):.2f} to {max(shares):.2f}; ends lower in {better} of {len(greedy)} panels")
        products = [greedy[key]["product"] for key in greedy]
        experiment_.compare("var x spa is the cost of reaching a point beside the baseline's 1",
                            f"GSpar {min(products):.2f} to {max(products):.2f}; UniSp 1 by construction (spa times 1 / spa)")
        sparser = [key for key in greedy if key[0].startswith("C1=0.01")]
        printed = sorted((key[0], greedy[key]["var"]) for key in greedy if key[1] == "1/N" and key not in sparser)
        experiment_.compare("the smaller C1 and C2, the sparser the gradients, and the smaller var",
                            "; ".join(f"{name} var {var:.2f}" for name, var in printed)
                            + f"; C1=0.01 C2=0.9 var {min(greedy[key]['var'] for key in sparser):.2f}",
                            "as printed, entries of the magnitude vector up to C2 are multiplied by C1. A smaller C2 shrinks fewer, and "
                            "with C1 = 0.9 shrinking does next to nothing. C1 = 0.01 and C2 = 0.9 (section 4.2) is sparse.")
    base, greedy = of(svrg, "baseline"), of(svrg, "gspar")
    if greedy:
        ratios = [np.log10(base[key]["points"][0][2] / max(greedy[key]["end"], 1e-16))
                  / np.log10(base[key]["points"][0][2] / max(base[key]["end"], 1e-16)) for key in greedy]
        experiment_.compare("Figure 2: with SVRG the rate degrades only slightly",
                            f"decades that GSpar came down over the baseline's, same passes: {min(ratios):.2f} to {max(ratios):.2f}")
    hybrid = of(bytes_rows, "gspar hybrid") or of(bytes_rows, "gspar")
    quantized = [of(bytes_rows, name) for name in ("qsgd2", "qsgd4", "qsgd8")]
    words = []
    for key in hybrid:
        taken = [rows[key]["kbytes_to_target"] for rows in quantized if key in rows]
        best = min((kbytes for kbytes in taken if kbytes is not None), default=None)
        own, other = ("not reached" if kbytes is None else f"{kbytes:.0f} kB" for kbytes in (hybrid[key]["kbytes_to_target"], best))
        words.append(f"{key[0]} l2 {key[1]}: {own} against {other}")
    experiment_.compare("Figure 3: at least comparable to QSGD, and far better where the gradient is sparse (bytes)",
                        "GSpar against the best QSGD, to 10 times the baseline's end: " + "; ".join(words))


def main():
    here = Experiment("gspar_fig1_3", "GSpar on l2-regularised logistic regression", "[GSpar18, 4, figures 1 to 3]")
    n, d = (256, 256) if here.quick else (1024, 2048)
    passes = 4 if here.quick else 20
    rates = [1, 8] if here.quick else [0.5, 2, 8, 32]
    settings = [(0.9, 4.0 ** -1), (0.9, 4.0 ** -2), (0.9, 4.0 ** -3), (0.01, 0.9)]
    settings = [settings[0], settings[-1]] if here.quick else settings
    texts = [("gspar", f"gspar:{SPA}", "raw+raw", True), ("gspar_closed", "gspar_closed:1", "raw+raw", True),
             ("uniform", f"uniform:{SPA}", "raw+raw", True)]
    methods = [("baseline", None, "", False)] + here.known(texts, d)
    problems = [[(f"C1={c1:g} C2={c2:g}", Problem(c1, c2, n, d, l2, here.seed)) for c1, c2 in settings] for l2 in (1 / (10 * n), 1 / n)]
    first, sgd = figure_of(here, "sgd", problems, methods, passes, rates, 1)
    second, svrg = figure_of(here, "svrg", problems, methods, passes, [rate / 16 for rate in rates] if not here.quick else rates, 2)
    bytes_texts = [("gspar", f"gspar:{SPA}", "adaptive+raw", True), ("gspar hybrid", f"gspar:{SPA}", "adaptive+gspar_hybrid", True),
                   ("qsgd2", "dense", "raw+qsgd2:l2", False), ("qsgd4", "dense", "raw+qsgd4:l2", False),
                   ("qsgd8", "dense", "raw+qsgd8:l2", False)]
    third, bytes_rows = figure3(here, [of_l2[:2] + of_l2[3:] for of_l2 in problems],
                                [("baseline", None, "", False)] + here.known(bytes_texts, d), passes, rates)
    compare(here, sgd, svrg, bytes_rows)
    here.out.mkdir(parents=True, exist_ok=True)
    second.savefig(here.out / "gspar_fig2.png", dpi=80)
    third.savefig(here.out / "gspar_fig3.png", dpi=80)
    plt.close(second)
    plt.close(third)
    here.finish(first, {"n": n, "d": d, "workers": WORKERS, "batch": BATCH, "figure1": sgd, "figure2": svrg, "figure3": bytes_rows})


if __name__ == "__main__":
    main()
