"""A client of CurveZMQ (https://rfc.zeromq.org/spec/26/) as bytes: its handshake, and messages that ZeroMQ's own clients never send.

Needs libsodium, which ZeroMQ needs as well.
"""

import ctypes
import ctypes.util

KEY_BYTES = 32
MAC_BYTES = 16
NONCE_BYTES = 24
COMMAND, LONG = 4, 2  # flags of a ZMTP frame
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
METADATA = b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
SODIUM = ctypes.CDLL(ctypes.util.find_library("sodium") or "libsodium.so.23")


def sodium(name, *arguments):
    if getattr(SODIUM, name)(*arguments) != 0:
        raise ValueError(f"{name} fails")


def public_of(secret):
    public = ctypes.create_string_buffer(KEY_BYTES)
    sodium("crypto_scalarmult_base", public, secret)
    return public.raw


def shared_key(public, secret):
    key = ctypes.create_string_buffer(KEY_BYTES)
    sodium("crypto_box_beforenm", key, public, secret)
    return key.raw


def box(text, nonce, key):
    out = ctypes.create_string_buffer(len(text) + MAC_BYTES)
    sodium("crypto_box_easy_afternm", out, text, ctypes.c_ulonglong(len(text)), nonce, key)
    return out.raw


def unbox(sealed, nonce, key):
    out = ctypes.create_string_buffer(len(sealed) - MAC_BYTES)
    sodium("crypto_box_open_easy_afternm", out, sealed, ctypes.c_ulonglong(len(sealed)), nonce, key)
    return out.raw


def frame(flags, body):
    if len(body) < 256:
        return bytes([flags, len(body)]) + body
    return bytes([flags | LONG]) + len(body).to_bytes(8, "big") + body


class CurveClient:
    """One connection. Its calls are in this order: hello, initiate, message…"""

    def __init__(self, secret, server, draw):
        self.secret, self.server = secret, server
        self.short_secret = draw(KEY_BYTES)
        self.short_public = public_of(self.short_secret)
        self.draw, self.count, self.key = draw, 0, b""

    def nonce(self):
        self.count += 1
        return self.count.to_bytes(8, "big")

    def hello(self):
        short = self.nonce()
        proof = box(bytes(64), b"CurveZMQHELLO---" + short, shared_key(self.server, self.short_secret))
        return GREETING + frame(COMMAND, b"\x05HELLO\x01\x00" + bytes(72) + self.short_public + short + proof)

    def initiate(self, welcome):
        """Returns the answer to the body of the frame WELCOME."""
        name = b"\x07WELCOME"
        if not welcome.startswith(name):
            raise ValueError("no WELCOME")
        long, sealed = welcome[len(name):len(name) + 16], welcome[len(name) + 16:]
        opened = unbox(sealed, b"WELCOME-" + long, shared_key(self.server, self.short_secret))
        server_short, cookie = opened[:KEY_BYTES], opened[KEY_BYTES:]
        self.key = shared_key(server_short, self.short_secret)
        long = self.draw(16)
        vouch = box(self.short_public + self.server, b"VOUCH---" + long, shared_key(server_short, self.secret))
        short = self.nonce()
        sealed = box(public_of(self.secret) + long + vouch + METADATA, b"CurveZMQINITIATE" + short, self.key)
        return frame(COMMAND, b"\x08INITIATE" + cookie + short + sealed)

    def message(self, flags, body):
        """Returns a frame of a message. flags: 1 where more frames follow."""
        short = self.nonce()
        return frame(0, b"\x07MESSAGE" + short + box(bytes([flags]) + body, b"CurveZMQMESSAGEC" + short, self.key))
