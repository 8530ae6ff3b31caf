#!/usr/bin/python3
"""[SparCML19, figure 3]: the time of an allreduce against the number of nodes, and against the density.

    tests/bench/papers/sparcml_fig3.py [--quick] [--out FOLDER] [--programs FOLDER]

Simulated (`millrace-bench simulate`): 2 to 4,096 ranks, N = 2^20 (the paper: 2^24), d = 0.781 %. The network is like
Piz Daint's: 1.5 us a message, 80 Gbit/s. Measured (`millrace-bench peers` in network namespaces of 1 Gbit/s, the
paper's Gigabit Ethernet): against ranks at 0.781 %, and against density with 8 ranks. There N = 2^22, with two cores
for all ranks. The measured part needs root and iproute2, and reports it where they are missing.
"""

from experiment import Experiment, panels, table
from peers import PROGRAM, bench, simulate, why_no_namespaces

DENSITY = 0.00781
RATE = "1gbit"
ALGORITHMS = ["ssar_recursive_doubling", "ssar_split_allgather", "dsar_split_allgather", "sparse_ring", "dense_ring", "dense_rabenseifner"]
BESIDE = ["oktopk"]  # not of this paper
COLOURS = {"ssar_recursive_doubling": "tab:blue", "ssar_split_allgather": "tab:green", "dsar_split_allgather": "tab:red",
           "sparse_ring": "tab:brown", "dense_ring": "tab:grey", "dense_rabenseifner": "black", "oktopk": "tab:purple",
           "openmpi_dense": "tab:orange"}


def plot(axis, xs, times, title, xlabel):
    for name, ms in times.items():
        points = [(x, value) for x, value in zip(xs, ms) if value is not None]
        if points:
            axis.loglog(*zip(*points), "o-", ms=3, lw=1.2, color=COLOURS[name], label=name)
    if xlabel == "ranks":
        axis.set_xscale("log", base=2)
    axis.set(title=title, xlabel=xlabel, ylabel="ms")
    axis.legend(fontsize=6)


def print_times(heading, xs, times):
    print(heading)
    rows = [{"algorithm": name, **{str(x): value for x, value in zip(xs, ms)}} for name, ms in times.items()]
    table(rows, [("algorithm", "ms", "s")] + [(str(x), str(x), ".3g") for x in xs])


def simulated(here, ranks):
    times = {name: [] for name in ALGORITHMS + BESIDE}
    for count in ranks:
        rows = simulate(here, ALGORITHMS + BESIDE, ranks=count, dimension=1 << (14 if here.quick else 20), density=DENSITY, latency="1500ns",
                        link_rate="80gbit", steps=1, time_limit="900s")
        for name, ms in times.items():
            ms.append(rows[name]["virtual_ms"] if name in rows else None)
    return times


def measured(here, cells):
    """{algorithm: [median ms by (ranks, density)]}."""
    names = ALGORITHMS + BESIDE
    times = {name: [] for name in names + ["openmpi_dense"]}
    for ranks, density in cells:
        rows = bench(here, ranks, RATE, dimension=1 << (14 if here.quick else 22), density=density, algorithm=names, repeats=2 if here.quick else 5,
                     warmup=1)
        for name, ms in times.items():
            ms.append(rows[name]["median_ms"])
    return times


def best(times, at, names):
    """The fastest; of those that are as fast the first."""
    return min((name for name in names if times[name][at] is not None), key=lambda name: times[name][at])


def compare_simulated(here, ranks, times):
    first = [f"{count}: {best(times, at, ALGORITHMS)}" for at, count in enumerate(ranks)]
    here.compare("recursive doubling for little data, split allgather as nodes and data grow", "fastest by ranks: " + "; ".join(first))
    ring = [times["dense_ring"][at] / times["dense_rabenseifner"][at] for at in range(len(ranks))]
    here.compare("the dense ring gives no speed-up at a high number of nodes", f"its time over Rabenseifner's: {ring[0]:.2f} at {ranks[0]} "
                 f"ranks, {ring[-1]:.2f} at {ranks[-1]}", "2 (P - 1) messages, one after the other")
    gain = [times["dense_rabenseifner"][at] / times["dsar_split_allgather"][at] for at in range(len(ranks))]
    here.compare("DSAR is faster than dense also with many nodes, by a constant factor at most",
                 "; ".join(f"{count}: {value:.2f} x" for count, value in zip(ranks, gain)), "its second half is dense: without a quantizer 2 x")


def compare_density(here, densities, times):
    dense = times["openmpi_dense"]
    def ratios(name):
        return ", ".join(f"{100 * density:g} %: {value / floor:.3f}" for density, value, floor in zip(densities, times[name], dense))
    here.compare("SSAR split allgather wins over DSAR as long as the sum is sparse",
                 "over MPI_Allreduce's time: SSAR " + ratios("ssar_split_allgather") + "; DSAR " + ratios("dsar_split_allgather"))


def main():
    here = Experiment("sparcml_fig3", "SparCML: time of an allreduce against nodes and density", "[SparCML19, 8.1, figure 3]", PROGRAM)
    ranks = [2, 4, 8] if here.quick else [2 ** power for power in range(1, 13)]
    few = [2, 4] if here.quick else [2, 4, 8]
    densities = [0.001, 0.01] if here.quick else [0.0001, 0.001, 0.00781, 0.03, 0.1, 0.25]
    figure, axes = panels(1, 3, width=4.8, height=4.0)
    result = {"ranks": ranks, "simulated_ms": simulated(here, ranks)}
    print_times(f"simulated, d = {DENSITY:.3%}, by ranks", ranks, result["simulated_ms"])
    plot(axes[0][0], ranks, result["simulated_ms"], "simulated: 1.5 us, 80 Gbit/s, N = 2^20, d = 0.781 %", "ranks")
    compare_simulated(here, ranks, result["simulated_ms"])
    missing = why_no_namespaces()
    if missing:
        here.skip("the measured figures", missing)
    else:
        by_ranks = measured(here, [(count, DENSITY) for count in few])
        by_density = measured(here, [(few[-1], density) for density in densities])
        print_times(f"measured at {RATE}, d = {DENSITY:.3%}, by ranks", few, by_ranks)
        print_times(f"measured at {RATE}, {few[-1]} ranks, by density", densities, by_density)
        plot(axes[0][1], few, by_ranks, "measured: 1 Gbit/s, N = 2^22, d = 0.781 %", "ranks")
        plot(axes[0][2], densities, by_density, f"measured: 1 Gbit/s, N = 2^22, {few[-1]} ranks", "density")
        compare_density(here, densities, by_density)
        result.update(measured_ranks=few, by_ranks_ms=by_ranks, densities=densities, by_density_ms=by_density)
    here.finish(figure, result)


if __name__ == "__main__":
    main()
