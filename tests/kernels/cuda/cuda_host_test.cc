#include "tests/kernels/cuda/host_under_test.h"
// The suites test the queues that the first header names.
#include "tests/kernels/cuda/select_suite.h"
