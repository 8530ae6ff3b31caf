"""Reads Millrace containers, with nothing but Python's standard library.

The reader was written from the pages in protocol/wire/ alone, as a proof that they suffice. Comments cite a page and a
section of it. The reader is for tests and foreign clients that must agree on every byte; it is not fast.

    from container_reader.container import decode
    stream = decode(container_bytes, dimension=16)
    stream.indices, stream.values

A container holds all that its reader needs: the codecs, their parameters, and the seed of a code that draws random
numbers. Step, part and worker change nothing. The caller may state the dimension that it expects, and limits.

The reader knows all index codecs but 23 (history.md), and the value codecs of the table VALUE_CODECS. It refuses other
codecs, and containers over its limits, with `Unsupported`. It refuses everything else that is wrong with `Malformed`.
"""
