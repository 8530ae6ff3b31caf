#include "tests/kernels/cuda/host_under_test.h"
// The suites test the queues of the first header.
#include "tests/kernels/cuda/accumulator_suite.h"
#include "tests/kernels/cuda/arrays_suite.h"
#include "tests/kernels/cuda/draw_suite.h"
#include "tests/kernels/cuda/quantize_suite.h"
#include "tests/kernels/cuda/select_suite.h"
#include "tests/kernels/cuda/threshold_suite.h"
