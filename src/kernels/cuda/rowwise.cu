#include <cuda_runtime.h>
extern "C" __global__ void placeholder(int) {}
