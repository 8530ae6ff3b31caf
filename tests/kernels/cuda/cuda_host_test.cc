#include "tests/kernels/cuda/host_under_test.h"
// The suites test the queues that the first header names.
#include "tests/kernels/cuda/arrays_suite.h"
#include "tests/kernels/cuda/quantize_suite.h"
#include "tests/kernels/cuda/select_suite.h"
