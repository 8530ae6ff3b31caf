"""Buckets in a CUDA device's memory: streams, copies over the bus, and updates that are written there."""

import contextlib
import logging

import torch

_log = logging.getLogger("millrace.torch")


def on_device(buffer):
    """Says whether a bucket is in a CUDA device's memory."""
    return buffer.device.type == "cuda"


def future_of(buffer):
    """Returns a future for a bucket. Of a device: a wait for it makes the current stream wait for its value."""
    return torch.futures.Future(devices=[buffer.device]) if on_device(buffer) else torch.futures.Future()


def ready_of(buffer):
    """Returns the point of the current stream where the bucket's gradients are computed; None in the host's memory."""
    if not on_device(buffer):
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(buffer.device))
    return event


def use_on_current_stream(buffer):
    """Keeps the buffer's memory for the work of the current stream, where another stream has allocated it.

    Returns  that stream; None in the host's memory.
    """
    if not on_device(buffer):
        return None
    stream = torch.cuda.current_stream(buffer.device)
    buffer.record_stream(stream)
    return stream


def wait_for(stream):
    """Makes the current stream wait for the work so far of a stream, on its device. None: does nothing."""
    if stream is not None:
        torch.cuda.current_stream(stream.device).wait_stream(stream)


class DeviceValues:
    """Views a contiguous f32 tensor of a device, which the work so far of a stream writes.

    torch's own protocols name the default stream, which waits for the current one. Both have later work of the backward
    pass, for which a push must not wait.
    """

    def __init__(self, values, stream):
        self._values = values  # keeps the memory
        self.__cuda_array_interface__ = {"shape": tuple(values.shape), "typestr": "<f4", "data": (values.data_ptr(), True),
                                         "strides": None, "version": 3, "stream": stream}


class Streams:
    """Copies between a device and the host beside the backward pass, on two streams: of gradients, and of updates.

    bytes_up, bytes_down  that these copies moved to the device and from it.
    Threads               the pusher has the stream of gradients, the waiter that of updates. No call waits for the whole
                          device.
    """

    def __init__(self, device):
        self._device = device
        self._gradients, self._updates = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self.bytes_up = self.bytes_down = 0

    @contextlib.contextmanager
    def gradients(self, buffer, ready):
        """Runs the block's work on the stream of gradients, behind `ready`."""
        for stream in (self._gradients, self._updates):
            buffer.record_stream(stream)
        with torch.cuda.stream(self._gradients):
            self._gradients.wait_event(ready)
            yield

    def updates(self):
        """Runs the block's work on the stream of updates."""
        return torch.cuda.stream(self._updates)

    def view(self, values):
        """Returns what Session.push() reads on the device. REQUIRES: f32."""
        return DeviceValues(values, self._gradients.cuda_stream)

    def to_host(self, values):
        """Copies a flat tensor to pinned memory, and waits for the stream of gradients."""
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        self._gradients.synchronize()
        self.bytes_down += host.numel() * host.element_size()
        return host

    def to_device(self, host):
        """Returns a copy of a tensor of the host on the device, as part of the current stream's work."""
        self.bytes_up += host.numel() * host.element_size()
        pinned = host if host.is_pinned() else host.pin_memory()
        return pinned.to(self._device, non_blocking=True)


class Transfers:
    """Hands the gradients of a device to a session, and writes updates there.

    The session reads a gradient on the device where it can select from it there, or code all of it. Else the gradient is
    copied to the host and its update back, which the log says once.

    entries  {name: entries of the parameter}.
    Threads  push() and tell() belong to one thread, write() and copy() to one, which may be another.
    """

    def __init__(self, there, session, entries):
        self.streams = Streams(there)
        self._there, self._session, self._entries = there, session, entries
        self._pushed = set()  # names
        self._on_host = {}  # {name: why its gradient is copied to the host}
        self._told = False
        self.gradients, self.updates = self.streams.gradients, self.streams.updates

    def push(self, name, values, dtype, call):
        """Pushes a gradient by call(memory of the host, or a view of the device's), which returns the step's number.

        values   flat, on the device; the work of the stream of gradients so far writes them.
        dtype    of the update.
        Returns  the step's number; and the memory for the update where the gradient was copied to the host, else None.
        """
        self._pushed.add(name)
        number = self._push_there(name, values, call)
        if number is not None:
            return number, None
        host = self.streams.to_host(values)
        return call(host), host if host.dtype == dtype else host.to(dtype)

    def write(self, out, pieces):
        """Enqueues on the current stream that an update is written (write_update())."""
        write_update(out, pieces, self.streams.to_device)

    def copy(self, out, host):
        """Enqueues on the current stream that an update in the host's memory is copied."""
        out.copy_(self.streams.to_device(host))

    def tell(self):
        """Logs, once, which parameters are selected or coded where."""
        if self._told:
            return
        self._told = True
        copied = {}
        for name, why in self._on_host.items():
            copied.setdefault(why, []).append(self._entries[name])
        there = [self._entries[name] for name in self._pushed - self._on_host.keys()]
        _log.info("%s: gradients of %d parameters with %d entries are selected or coded there", self._there,
                  len(there), sum(there))
        for why, sizes in copied.items():
            _log.info("%s: gradients of %d parameters with %d entries are copied to the host and their updates back: %s",
                      self._there, len(sizes), sum(sizes), why)

    def _push_there(self, name, values, call):
        """Pushes from the device's memory. Returns None where the session does not take this parameter from there."""
        if name in self._on_host:
            return None
        if not hasattr(self._session, "try_wait"):
            self._on_host[name] = "peers sum in the host's memory"
            return None
        try:
            return call(self.streams.view(values.to(torch.float32)))
        except Exception as error:
            code = getattr(error, "code", "")
            # unavailable: no kernel for this card, or the session has ended, which the push from the host says again.
            if code not in ("unsupported", "unavailable", "limit_exceeded"):
                raise
            if code != "limit_exceeded":
                self._on_host[name] = str(error)
            else:
                _log.warning("%s: this step's gradient is copied to the host: %s", name, error)
            return None


def copied(transfers):
    """Returns the bytes that were copied to devices and from them."""
    return tuple(sum(getattr(one.streams, way) for one in transfers) for way in ("bytes_up", "bytes_down"))


def write_update(out, pieces, to_device):
    """Writes an update into a flat tensor of a device: sum / denominator, and 0 where it has no entry.

    out        [dimension], f32 or a half type, which is rounded to once.
    pieces     millrace.Piece.
    to_device  copies a tensor of the host.
    Cost       the update's entries over the bus: 8 bytes each, or 4 of a dense piece.
    The bits are those of Session.wait_into().
    """
    whole = out if out.dtype == torch.float32 else torch.empty(out.shape, dtype=torch.float32, device=out.device)
    whole.zero_()
    written = 0
    for piece in pieces:
        values = to_device(_tensor_of(piece.values, torch.float32)) * (1.0 / piece.denominator)
        run = whole.narrow(0, piece.begin, piece.dimension)
        if piece.dense:
            run.add_(values) if piece.begin < written else run.copy_(values)
        elif values.numel():
            # torch has no arithmetic on u32: the bits of an i32, as a number.
            at = to_device(_tensor_of(piece.indices, torch.int32)).to(torch.int64).bitwise_and_(0xFFFFFFFF)
            run[at] = run[at] + values if piece.begin < written else values
        written = max(written, piece.begin + piece.dimension)
    if whole is not out:
        out.copy_(whole)


def _tensor_of(array, dtype):
    bits = bytearray(memoryview(array))
    return torch.frombuffer(bits, dtype=dtype) if bits else torch.empty(0, dtype=dtype)
