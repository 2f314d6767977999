// A CUDA runtime, cuBLAS, cuDNN and NCCL without a GPU: kernels do nothing but take (virtual) time, copies are real,
// collectives are real in meaning. One library with the soname libcuda.so.1, to be preloaded; library.py builds it.
//
// Each header is one part and includes the one before it. They are one translation unit, so that only what torch calls
// is visible outside.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <fcntl.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nccl.h>

#include "nccl_calls.h"
