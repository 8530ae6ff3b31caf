#!/usr/bin/env python3
"""Arrays in and out: every type of elements, refusals, and copies.

    arrays_test.py FOLDER_OF_PROGRAMS FOLDER_OF_PACKAGE [unittest arguments]
"""

import array
import contextlib
import sys
import types
import unittest
from unittest import mock

from shards import WithShards, millrace
from dlpack_array import BFLOAT, FLOAT, GPU, CudaArray, DlpackArray, DlpackBuffer

import numpy as np

N = 500


def bf16_of(values):
    """Returns the bits of f32 values that bf16 has exactly."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


class Arrays(WithShards):
    def setUp(self):
        self.session, = self.connect([millrace.Tensor("w", N)], select="none")
        self.step = 0

    def sum_of(self, gradient, out=None):
        """Returns the update of one push of the gradient."""
        out = np.empty(N, np.float32) if out is None else out
        self.session.wait_into("w", self.session.push("w", gradient), out)
        return out

    def test_GradientsOfEveryType_AreAdded(self):
        values = np.arange(N) % 100 - 50.0
        for kind in (np.float32, np.float64, np.float16):
            np.testing.assert_array_equal(self.sum_of(values.astype(kind)), values.astype(np.float32))
        np.testing.assert_array_equal(self.sum_of(DlpackArray(bf16_of(values), BFLOAT, 16)), values)
        np.testing.assert_array_equal(self.sum_of(DlpackArray(values.astype(np.float32), FLOAT, 32)), values)
        np.testing.assert_array_equal(self.sum_of(array.array("f", values)), values)
        np.testing.assert_array_equal(self.sum_of(values.reshape(5, 100)), values)

    def test_OutputsOfEveryType_AreWritten(self):
        values = (np.arange(N) % 100 - 50).astype(np.float32)
        for kind in (np.float32, np.float64, np.float16):
            np.testing.assert_array_equal(self.sum_of(values, np.full(N, 9, kind)), values)
        brain = np.zeros(N, np.uint16)
        self.sum_of(values, DlpackArray(brain, BFLOAT, 16))
        np.testing.assert_array_equal(brain, bf16_of(values))

    def test_ContiguousF32_IsNeverCopied(self):
        gradient = np.ones(N, np.float32)
        before = millrace.copies()
        self.sum_of(gradient, gradient)
        self.sum_of(DlpackArray(gradient, FLOAT, 32), DlpackArray(gradient, FLOAT, 32))
        self.assertEqual(millrace.copies(), before)
        self.sum_of(gradient.astype(np.float64), np.empty(N, np.float16))
        self.assertEqual(millrace.copies(), (before.bytes_in + 4 * N, before.bytes_out + 4 * N))

    def test_GradientsOfPeers_AreCopiedOnce(self):
        group, = millrace.peers.Group.in_process(1)
        with group:
            sums, whole = millrace.peers.GradientSum(group, N), millrace.peers.Allreduce(group, N)
            for start, array, copied in ((sums.push, np.ones(N, np.float32), 4 * N), (sums.push, np.ones(N, np.float64), 8 * N),
                                         (whole.start, np.ones(N, np.float32), 4 * N)):
                before = millrace.copies()
                started = start(array)
                self.assertEqual(millrace.copies(), (before.bytes_in + copied, before.bytes_out))
                if start == sums.push:
                    sums.wait_into(started, np.empty(N, np.float32))
                else:
                    started.wait()
            before = millrace.copies()
            whole.start_sparse(np.array([3, 5], np.uint32), np.ones(2, np.float32)).wait()
            self.assertEqual(millrace.copies().bytes_in, before.bytes_in + 2 * (4 + 4))
            sums.close()

    def test_ArraysOfADevice_ReachTheLibrary(self):
        """Whose errors say the rest: the memory is no device's, and the job sends everything."""
        session, = self.connect([millrace.Tensor("w", N)], name="device_arrays", select="topk:0.1")
        values = np.ones(N, np.float32)
        there = DlpackArray(values, FLOAT, 32, device=GPU)
        for array in (there, DlpackBuffer(values, FLOAT, 32, GPU), CudaArray(values), CudaArray(values.reshape(5, 100), stream=1)):
            self.refused("unsupported", "select by topk", self.session.push, "w", array)
            with self.assertRaisesRegex(millrace.JobError, "CUDA|cuda") as caught:
                session.push("w", array)
            self.assertIn(caught.exception.code, ("unsupported", "unavailable", "invalid_argument"))
        self.assertEqual(there.stream, 1)  # the default stream, which a producer makes wait for its current one
        session.wait_into("w", session.push("w", values), values)
        session.finish()

    def test_DlpackOfTorch_IsCalledForItsCurrentStreamAndDevice(self):
        """torch refuses another device's tensor, or orders the work of the wrong streams. Its default stream is 0, and DLPack's 1."""
        said = []

        class Tensor(DlpackArray):
            def __dlpack_device__(self):
                return (GPU, 3)

            def __dlpack__(self, stream=None):
                said.append("dlpack")
                return super().__dlpack__(stream)

        @contextlib.contextmanager
        def device(index):
            said.append(index)
            yield
            said.append("before")

        for handle, stream in ((0, 1), (77, 77)):
            there = Tensor(np.ones(N, np.float32), FLOAT, 32, GPU)
            current = types.SimpleNamespace(cuda_stream=handle)
            torch = types.SimpleNamespace(Tensor=Tensor, cuda=types.SimpleNamespace(device=device, current_stream=lambda now=current: now))
            with mock.patch.dict(sys.modules, {"torch": torch}):
                self.refused("unsupported", "select by topk", self.session.push, "w", there)
            self.assertEqual(said, [3, "dlpack", "before"])
            self.assertEqual(there.stream, stream)
            said.clear()

    def test_BadGradients_AreRefusedWithASentence(self):
        push = self.session.push
        cases = ((ValueError, "not contiguous", np.ones(2 * N, np.float32)[::2]),
                 (ValueError, "not contiguous", DlpackArray(np.ones((N, 2), np.float32), FLOAT, 32, strides=(1, N))),
                 (ValueError, "not contiguous", CudaArray(np.ones((N, 2), np.float32), strides=(4, 4 * N))),
                 (ValueError, "not contiguous", DlpackArray(np.ones((N, 2), np.float32), FLOAT, 32, GPU, (1, N))),
                 (ValueError, "mask", CudaArray(np.ones(N, np.float32), mask=1)),
                 (TypeError, "takes? f32|f32 is taken", CudaArray(np.ones(N, np.float64))),
                 (TypeError, "f32 is taken", DlpackArray(np.ones(N, np.float64), FLOAT, 64, GPU)),
                 (TypeError, "format 'Zd'", np.ones(N, np.complex128)),
                 (TypeError, "format '>f'", np.ones(N, ">f4")),
                 (TypeError, "of type i32", np.ones(N, np.int32)),
                 (TypeError, "elements of another type", DlpackArray(np.ones(N, np.uint8), FLOAT, 8)),
                 (TypeError, "is a list", [1.0] * N),
                 (TypeError, "is a NoneType", None))
        for kind, sentence, gradient in cases:
            with self.subTest(sentence=sentence), self.assertRaisesRegex(kind, sentence):
                push("w", gradient)
        self.refused("invalid_argument", "499", push, "w", np.ones(N - 1, np.float32))
        self.refused("invalid_argument", "0", push, "w", np.ones(0, np.float32))
        with self.assertRaisesRegex(ValueError, "device"):
            self.session.push_sparse("w", np.zeros(1, np.uint32), DlpackArray(np.ones(1, np.float32), FLOAT, 32, GPU))
        for bad in (np.nan, np.inf, -np.inf):
            self.refused("non_finite", "", push, "w", np.full(N, bad, np.float16))
        self.refused("non_finite", "", push, "w", np.full(N, 1e300))
        np.testing.assert_array_equal(self.sum_of(np.ones(N, np.float32)), np.ones(N))  # nothing of them was taken

    def test_BadOutputs_AreRefusedBeforeTheUpdateIsTaken(self):
        step = self.session.push("w", np.ones(N, np.float32))
        read_only = np.ones(N, np.float32)
        read_only.flags.writeable = False
        cases = ((ValueError, "read-only", read_only), (ValueError, "not contiguous", np.ones((N, 2), np.float32)[:, 0]),
                 (TypeError, "of type i64", np.ones(N, np.int64)), (TypeError, "is a float", 1.0))
        for kind, sentence, out in cases:
            with self.subTest(sentence=sentence), self.assertRaisesRegex(kind, sentence):
                self.session.wait_into("w", step, out)
        self.refused("invalid_argument", "501 elements", self.session.wait_into, "w", step, np.empty(N + 1, np.float32))
        with self.assertRaisesRegex(ValueError, "not finite"):
            self.session.wait_into("w", step, np.empty(N), scale=float("nan"))
        out = np.empty(N, np.float32)
        self.session.wait_into("w", step, out)
        self.assertEqual(out.sum(), N)

    def test_Weights_MustBeWritableF32(self):
        for kind, sentence, weights in ((TypeError, "f32 alone", np.zeros(N)), (ValueError, "read-only", bytes(4 * N))):
            tensor = millrace.Tensor("w", N, weights=np.frombuffer(weights, np.float32) if isinstance(weights, bytes) else weights,
                                     scale=-1.0)
            with self.assertRaisesRegex(kind, sentence):
                millrace.check(self.job(), self.me(), [tensor])
        for named in ({"scale": 1.0}, {"weights": np.zeros(N, np.float32)}):
            with self.assertRaisesRegex(ValueError, "scale"):
                millrace.Tensor("w", N, **named).row()

    def test_Arrays_AreReadByBothProtocols(self):
        update = self.session.wait("w", self.session.push_sparse("w", np.array([5, 9]), np.array([1.0, 2.0])))
        pieces = [piece for piece in update.pieces if len(piece.values)]
        for piece in pieces:
            for got in (piece.values, piece.indices):
                if got is None:
                    continue
                np.testing.assert_array_equal(np.from_dlpack(got), np.asarray(got))
                self.assertEqual(np.asarray(got).ctypes.data, np.from_dlpack(got).ctypes.data)
                self.assertEqual((got.__dlpack_device__(), len(got)), ((1, 0), np.asarray(got).size))
                got.__dlpack__()  # a capsule that nothing reads
        self.assertEqual(sum(np.asarray(piece.values).sum() for piece in pieces), 3)


if __name__ == "__main__":
    unittest.main()
