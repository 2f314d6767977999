// cuBLAS and cuBLASLt: a product takes the time of its FLOPs at the card's rate for its type.
#pragma once
#include "driver.h"

extern "C" {
struct Blas {
    Stream *stream = nullptr;
    cublasMath_t math = CUBLAS_DEFAULT_MATH;
    cublasPointerMode_t mode = CUBLAS_POINTER_MODE_HOST;
};
#define BLAS(handle) ((Blas *)(handle))

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    if (dev(cur).sticky) return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = (cublasHandle_t) new Blas;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t h, cudaStream_t s) {
    BLAS(h)->stream = stream_of(s);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t h, cublasMath_t *math) {
    *math = BLAS(h)->math;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t h, cublasMath_t math) {
    BLAS(h)->math = math;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t *mode) {
    *mode = BLAS(h)->mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t h, cublasPointerMode_t mode) {
    BLAS(h)->mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

static double tflops(cudaDataType type, cublasMath_t math) {
    switch (type) {
    case CUDA_R_64F: return kind().tflops_32 / 2;
    case CUDA_R_32F: return math == CUBLAS_TF32_TENSOR_OP_MATH ? kind().tflops_16 / 2 : kind().tflops_32;
    case CUDA_R_8F_E4M3: return 2 * kind().tflops_16;
    default: return kind().tflops_16;
    }
}

static cublasStatus_t gemm(Stream *s, double m, double n, double k, double batch, cudaDataType type,
                           cublasMath_t math) {
    if (dev(cur).sticky) return CUBLAS_STATUS_EXECUTION_FAILED;
    work(s, 3000 + 2 * m * n * k * batch / tflops(type, math) / 1000);
    return dev(cur).sticky ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void *,
                            const void *, cudaDataType type, int, const void *, cudaDataType, int, const void *, void *,
                            cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t) {
    return gemm(BLAS(h)->stream, m, n, k, 1, type, BLAS(h)->math);
}
cublasStatus_t cublasSgemm_v2(cublasHandle_t h, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                              const float *, const float *, int, const float *, int, const float *, float *, int) {
    return gemm(BLAS(h)->stream, m, n, k, 1, CUDA_R_32F, BLAS(h)->math);
}
cublasStatus_t cublasDgemm_v2(cublasHandle_t h, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                              const double *, const double *, int, const double *, int, const double *, double *, int) {
    return gemm(BLAS(h)->stream, m, n, k, 1, CUDA_R_64F, BLAS(h)->math);
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                          const void *, const void *, cudaDataType type, int, long long, const void *,
                                          cudaDataType, int, long long, const void *, void *, cudaDataType, int,
                                          long long, int batch, cublasComputeType_t, cublasGemmAlgo_t) {
    return gemm(BLAS(h)->stream, m, n, k, batch, type, BLAS(h)->math);
}
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t h, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                         const float *, const float *, int, long long, const float *, int, long long,
                                         const float *, float *, int, long long, int batch) {
    return gemm(BLAS(h)->stream, m, n, k, batch, CUDA_R_32F, BLAS(h)->math);
}

// ---- cuBLASLt: the shape of the product is in the layouts of its matrices ------------------------------------------

struct Layout {
    cudaDataType type;
    uint64_t rows, columns;
};
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t) {
    *layout = (cublasLtMatrixLayout_t) new Layout{type, rows, columns};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    delete (Layout *)layout;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *description, cublasComputeType_t, cudaDataType) {
    *description = (cublasLtMatmulDesc_t)malloc(8);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
    free(description);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    *preference = (cublasLtMatmulPreference_t)malloc(8);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t results[], int *count) {
    memset(results, 0, sizeof *results);
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                              cublasLtMatrixLayout_t a, const void *, cublasLtMatrixLayout_t, const void *,
                              const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *, void *, size_t, cudaStream_t s) {
    const Layout *left = (Layout *)a, *product = (Layout *)d;
    double k = (double)left->rows * left->columns / product->rows; // left is m × k or k × m
    return gemm(stream_of(s), product->rows, product->columns, k, 1, left->type, CUBLAS_DEFAULT_MATH);
}
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
}
