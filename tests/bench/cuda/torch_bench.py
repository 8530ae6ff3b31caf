"""Measures torch.topk of the 1 % largest magnitudes of 2^28 values beside a read pass. Prints JSON.

Exits 77 where PyTorch or its card is absent.
"""
import json
import sys

try:
    import torch
except ImportError:
    torch = None


def median_ms(work, repeats=10):
    times = []
    for i in range(repeats + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        if i >= 2:
            times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def main():
    if torch is None or not torch.cuda.is_available():
        print("no torch with CUDA here", file=sys.stderr)
        sys.exit(77)
    n = 1 << (int(sys.argv[1]) if len(sys.argv) > 1 else 28)
    magnitudes = (torch.randn(n, device="cuda") ** 3).abs()
    print(json.dumps({
        "torch": torch.__version__,
        "card": torch.cuda.get_device_name(0),
        "torch_max_ms": median_ms(lambda: torch.max(magnitudes)),
        "torch_topk_unsorted_ms": median_ms(lambda: torch.topk(magnitudes, n // 100, sorted=False)),
        "torch_topk_ms": median_ms(lambda: torch.topk(magnitudes, n // 100)),
    }))


if __name__ == "__main__":
    main()
