// cuDNN: descriptors keep their attributes, one engine fits every graph, and each plan takes PLAYED_CONV_US.
#pragma once
#include "blas.h"

extern "C" {
struct Dnn {
    Stream *stream = nullptr;
};
struct Descriptor {
    std::map<int, std::vector<char>> attributes;
};

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    if (dev(cur).sticky) return CUDNN_STATUS_INTERNAL_ERROR;
    *handle = (cudnnHandle_t) new Dnn;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t s) {
    ((Dnn *)h)->stream = stream_of(s);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t h, cudaStream_t *s) {
    *s = (cudaStream_t)((Dnn *)h)->stream;
    return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetVersion() { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
cudnnStatus_t cudnnGetProperty(libraryPropertyType type, int *value) {
    *value = type == MAJOR_VERSION ? CUDNN_MAJOR : type == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
    return CUDNN_STATUS_SUCCESS;
}
const char *cudnnGetErrorString(cudnnStatus_t error) {
    switch (error) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    case CUDNN_STATUS_INTERNAL_ERROR: return "CUDNN_STATUS_INTERNAL_ERROR";
    default: return "CUDNN_STATUS_PLAYED";
    }
}
void cudnnGetLastErrorString(char *message, size_t length) {
    if (length) *message = 0;
}

// ---- the backend interface -------------------------------------------------------------------------------------

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t *descriptor) {
    *descriptor = (cudnnBackendDescriptor_t) new Descriptor;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    delete (Descriptor *)descriptor;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }

static size_t width_of(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_FRACTION: return 16;
    default: return 4;
    }
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    const char *begin = (const char *)values;
    if (values && count > 0) ((Descriptor *)descriptor)->attributes[name].assign(begin, begin + count * width_of(type));
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t give_number(int64_t number, int64_t *count, void *values) {
    if (count) *count = 1;
    if (values) *(int64_t *)values = number;
    return CUDNN_STATUS_SUCCESS;
}

// The heuristics find one engine configuration: that of the graph they were given.
static cudnnStatus_t give_engine(Descriptor *heuristics, int64_t wanted, int64_t *count, void *values) {
    if (count) *count = 1;
    if (!values || wanted <= 0) return CUDNN_STATUS_SUCCESS;
    Descriptor *configuration = ((Descriptor **)values)[0];
    auto graph = heuristics->attributes.find(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    if (configuration && graph != heuristics->attributes.end())
        configuration->attributes[CUDNN_ATTR_ENGINECFG_ENGINE] = graph->second;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted, int64_t *count, void *values) {
    Descriptor *self = (Descriptor *)descriptor;
    if (count) *count = 0;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: return give_engine(self, wanted, count, values);
    case CUDNN_ATTR_ENGINECFG_ENGINE: return give_number(0, count, nullptr);
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: return give_number(1, count, values);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE:
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: return give_number(0, count, values);
    default: break;
    }
    auto found = self->attributes.find(name);
    if (found == self->attributes.end()) return CUDNN_STATUS_SUCCESS;
    int64_t kept = found->second.size() / width_of(type);
    if (count) *count = kept;
    if (values) memcpy(values, found->second.data(), std::min(wanted, kept) * width_of(type));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) {
    static double us = atof(setting("PLAYED_CONV_US", "60"));
    if (dev(cur).sticky) return CUDNN_STATUS_EXECUTION_FAILED;
    work(((Dnn *)h)->stream, 1e3 * us);
    return dev(cur).sticky ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

// ---- the older interface, of batch normalization -------------------------------------------------------------------

#define CREATES(function, type)                                                                                        \
    cudnnStatus_t function(type *descriptor) {                                                                         \
        *descriptor = (type)malloc(64);                                                                                \
        return CUDNN_STATUS_SUCCESS;                                                                                   \
    }
CREATES(cudnnCreateTensorDescriptor, cudnnTensorDescriptor_t)
CREATES(cudnnCreateFilterDescriptor, cudnnFilterDescriptor_t)
CREATES(cudnnCreateConvolutionDescriptor, cudnnConvolutionDescriptor_t)
CREATES(cudnnCreateActivationDescriptor, cudnnActivationDescriptor_t)
CREATES(cudnnCreatePoolingDescriptor, cudnnPoolingDescriptor_t)

typedef const cudnnTensorDescriptor_t TensorOf;
typedef const cudnnActivationDescriptor_t ActivationOf;
cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(cudnnHandle_t, cudnnBatchNormMode_t,
                                                                       cudnnBatchNormOps_t, TensorOf, TensorOf,
                                                                       TensorOf, TensorOf, ActivationOf, size_t *n) {
    *n = 0;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(cudnnHandle_t, cudnnBatchNormMode_t,
                                                                cudnnBatchNormOps_t, TensorOf, TensorOf, TensorOf,
                                                                TensorOf, TensorOf, TensorOf, ActivationOf, size_t *n) {
    *n = 0;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t, cudnnBatchNormMode_t,
                                                                   cudnnBatchNormOps_t, ActivationOf, TensorOf,
                                                                   size_t *n) {
    *n = 4096;
    return CUDNN_STATUS_SUCCESS;
}
}
