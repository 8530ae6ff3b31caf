"""Arrays of protocols that NumPy lacks, made of a NumPy array of the same bytes."""

import ctypes


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("dimensions", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

FLOAT, BFLOAT = 2, 4
CPU, GPU = 1, 2


class DlpackArray:
    """An array that only DLPack can read, as bf16 ones of torch. code, bits: of an element. device: where it claims to be. strides: in elements."""

    def __init__(self, array, code, bits, device=CPU, strides=None):
        self.array = array
        self.device = device
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = None if strides is None else (ctypes.c_int64 * array.ndim)(*strides)
        self.tensor = _Tensor(data=array.ctypes.data, device_type=device, device_id=0, dimensions=array.ndim, code=code,
                              bits=bits, lanes=1, shape=self.shape, strides=self.strides, byte_offset=0, context=None,
                              deleter=None)
        self.capsules = 0
        self.stream = None

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, stream=None):
        self.capsules += 1
        self.stream = stream
        return _new_capsule(ctypes.addressof(self.tensor), b"dltensor", None)


class DlpackBuffer(DlpackArray, bytearray):
    """The same of a type with the buffer protocol, as arrays of JAX on every device. Its buffer lacks the values."""


class CudaArray:
    """An array that claims to be on a CUDA device, as CuPy and Numba have them. members: others of the interface."""

    def __init__(self, array, **members):
        self.array = array
        self.__cuda_array_interface__ = {"shape": array.shape, "typestr": array.dtype.str, "version": 3,
                                         "data": (array.ctypes.data, False), "strides": None, "stream": None, **members}
