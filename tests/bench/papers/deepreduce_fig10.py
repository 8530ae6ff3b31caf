#!/usr/bin/python3
"""[DeepReduce21, figure 10]: volume of indices and of values, and time to encode and decode, by method, on 1 % of a convolution's gradient.

    tests/bench/papers/deepreduce_fig10.py [--quick] [--out FOLDER] [--programs FOLDER]

36,864 entries, as ResNet-20's last convolutions have: 64 of the 128 filters of 64x3x3 of the CNN trace's third convolution, step 300,
worker 0. Medians of the repeats, one thread; volume over 4 bytes for each of the 36,864, without the container's 64 bytes.
"""

from experiment import Experiment, Replay, np, panels, table, trace

ENTRIES, DENSITY = 36864, 0.01
METHODS = [("top-r (raw pairs)", "raw+raw"), ("BF-P0, rate 0.001", "bloom_p0:0.001+raw"), ("BF-P1, rate 0.001", "bloom_p1:0.001+raw"),
           ("BF-P2, rate 0.001", "bloom_p2:0.001+raw"), ("RLE", "run_length+raw"), ("Huffman", "huffman+raw"), ("adaptive", "adaptive+raw"),
           ("Fit-Poly", "raw+fit_poly"), ("Fit-DExp", "raw+fit_dexp"), ("Deflate", "raw+deflate"), ("QSGD, 8 bits", "raw+qsgd8"),
           ("BF-P2 + Fit-Poly", "bloom_p2:0.001+fit_poly"), ("BF-P0 + QSGD 8", "bloom_p0:0.001+qsgd8"), ("SketchML", "delta_binary+sketchml"),
           ("SKCompress", "delta_huffman+skcompress"), ("adaptive + QSGD 4", "adaptive+qsgd4")]


def gradient():
    accumulators, layers = trace("cnn-step300")
    begin = int(np.sum(layers[:4]))  # weights and biases of the first two convolutions
    assert layers[4] == 128 * 64 * 9
    return accumulators[0][begin:begin + ENTRIES]


def measured(here, values, codec, repeats):
    with Replay(here.folder, len(values), f"topk:{DENSITY}", codec, seed=here.seed) as replay:
        steps = [replay.step(values) for _ in range(repeats)]
    decoded, cost = steps[-1]
    k = cost["selected"]
    top = np.zeros_like(values)
    largest = np.argsort(-np.abs(values), kind="stable")[:k]
    top[largest] = values[largest]
    dense = 4 * len(values)
    return {"indices": cost["index_bytes"] / dense, "values": cost["value_bytes"] / dense,
            "volume": (cost["index_bytes"] + cost["value_bytes"]) / dense, "k": k, "decoded": cost["decoded"],
            "error": float(np.linalg.norm(decoded - top) / np.linalg.norm(top)),
            "encode_us": float(np.median([cost["encode_ns"] for _, cost in steps])) / 1e3,
            "decode_us": float(np.median([cost["decode_ns"] for _, cost in steps])) / 1e3}


def plot(rows):
    figure, axes = panels(1, 2, width=6.2, height=4.6)
    at = np.arange(len(rows))
    names = [row["method"] for row in rows]
    axes[0][0].barh(at, [100 * row["indices"] for row in rows], color="tab:blue", label="indices")
    axes[0][0].barh(at, [100 * row["values"] for row in rows], left=[100 * row["indices"] for row in rows], color="tab:orange",
                    label="values")
    axes[0][0].set(xlabel="volume, % of dense", yticks=at)
    axes[0][1].barh(at - 0.2, [row["encode_us"] for row in rows], 0.4, color="tab:green", label="encode")
    axes[0][1].barh(at + 0.2, [row["decode_us"] for row in rows], 0.4, color="tab:red", label="decode")
    axes[0][1].set(xlabel="microseconds, one thread", xscale="log", yticks=at)
    for axis in axes[0]:
        axis.set_yticklabels(names, fontsize=7)
        axis.invert_yaxis()
        axis.legend(fontsize=7)
    figure.suptitle("[DeepReduce21, figure 10]: 1 % of 36,864 entries of a convolution's gradient", fontsize=10)
    return figure


def compare(here, rows):
    of = {row["method"]: row for row in rows}
    plain = of["top-r (raw pairs)"]
    here.compare("all versions of DeepReduce transmit fewer data than plain top-r",
                 "larger than raw pairs: " + (", ".join(row["method"] for row in rows if row["volume"] > plain["volume"]) or "none"))
    best = min(rows, key=lambda row: row["volume"])
    if "SKCompress" in of:
        paper_methods = [row for row in rows if not row["method"].startswith("adaptive")]
        least = min(paper_methods, key=lambda row: row["volume"])
        here.compare("SKCompress performs the best by volume here",
                     f"of the paper's methods {least['method']}, {100 * least['volume']:.2f} %; SKCompress {100 * of['SKCompress']['volume']:.2f} %; "
                     f"of all {best['method']}, {100 * best['volume']:.2f} %")
    if "SKCompress" in of and "BF-P0 + QSGD 8" in of:
        both = [of[name]["encode_us"] + of[name]["decode_us"] for name in ("SKCompress", "BF-P0 + QSGD 8")]
        here.compare("SKCompress is 3 orders of magnitude (380 times) slower than BF-P0 with QSGD", f"{both[0] / both[1]:.1f} times, encode and decode",
                     "the paper has SKCompress in Python on a processor and the other on a GPU; here both are C++ on one thread")
    if "BF-P2, rate 0.001" in of:
        here.compare("the Bloom filter halves the keys",
                     f"P2 at 0.001: {of['BF-P2, rate 0.001']['indices'] / plain['indices']:.2f} of the raw indices; adaptive "
                     f"{of['adaptive']['indices'] / plain['indices']:.2f}, without loss",
                     "1.44 log2(1 / rate) bits an index: 14.4 of 32; gaps of clustered indices take less")


def main():
    here = Experiment("deepreduce_fig10", "DeepReduce: volume and time by method", "[DeepReduce21, 6.4, figure 10]")
    values = gradient()
    texts = here.known([(name, f"topk:{DENSITY}", codec, False) for name, codec in METHODS], ENTRIES)
    rows = [{"method": name, "codec": codec, **measured(here, values, codec, 3 if here.quick else 101)} for name, _, codec, _ in texts]
    table(rows, [("method", "", "s"), ("codec", "codec", "s"), ("indices", "indices", ".5f"), ("values", "values", ".5f"),
                 ("volume", "volume", ".5f"), ("decoded", "decoded", "d"), ("error", "error", ".3f"), ("encode_us", "encode us", ".1f"),
                 ("decode_us", "decode us", ".1f")])
    compare(here, rows)
    here.finish(plot(rows), {"entries": ENTRIES, "k": rows[0]["k"], "rows": rows})


if __name__ == "__main__":
    main()
