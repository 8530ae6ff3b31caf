"""The output of worker/examples/peers.cc, whose ranks are threads or processes."""

import re

LINE = re.compile(r"rank (\d+) of (\d+): largest error ([\d.]+), total (\S+), sent (\d+) bytes")


def check_example_of_peers(test, text, ranks):
    """Checks that every rank has ended near the target, with the same weights."""
    lines = LINE.findall(text)
    test.assertEqual(sorted(int(line[0]) for line in lines), list(range(ranks)), text)
    test.assertEqual({int(line[1]) for line in lines}, {ranks}, text)
    test.assertLess(max(float(line[2]) for line in lines), 1e-3, text)
    test.assertEqual(len({line[3] for line in lines}), 1, text)
    for line in lines:
        test.assertEqual(int(line[4]) > 0, ranks > 1, text)
