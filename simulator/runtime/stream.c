/* The simulator's CUDA runtime: short forms for streams, events and graphs, and what CUDA 13 changed of them. */
#define _GNU_SOURCE
#include "runtime.h"

API cudaError_t cudaStreamCreateWithFlags(CUstream *out, unsigned flags);
API cudaError_t cudaEventCreateWithFlags(CUevent *out, unsigned flags);
API cudaError_t cudaGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags);

API cudaError_t cudaStreamCreate(CUstream *out) { return cudaStreamCreateWithFlags(out, 0); }
API cudaError_t cudaEventCreate(CUevent *out) { return cudaEventCreateWithFlags(out, 0); }
API cudaError_t cudaGraphInstantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(out, graph, flags);
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode) {
    TRY(started());
    return end(driver.cuThreadExchangeStreamCaptureMode(mode));
}

static int capture_info(CUstream stream, int *status, unsigned long long *id, CUgraph *graph, const CUgraphNode **nodes,
                        const void **edges, size_t *n) {
    TRY(ready());
    return end(driver.cuStreamGetCaptureInfo(stream, status, id, graph, nodes, edges, n));
}

#if CUDA_13
API cudaError_t cudaStreamGetCaptureInfo(CUstream stream, int *status, unsigned long long *id, CUgraph *graph,
                                         const CUgraphNode **nodes, const void **edges, size_t *n) {
    return capture_info(stream, status, id, graph, nodes, edges, n);
}

API cudaError_t cudaGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *list, void *edges, size_t *n) {
    TRY(ready());
    return end(driver.cuGraphNodeGetDependencies(node, list, edges, n));
}
#else
API cudaError_t cudaStreamGetCaptureInfo_v2(CUstream stream, int *status, unsigned long long *id, CUgraph *graph,
                                            const CUgraphNode **nodes, size_t *n) {
    return capture_info(stream, status, id, graph, nodes, NULL, n);
}

API cudaError_t cudaStreamGetCaptureInfo_v3(CUstream stream, int *status, unsigned long long *id, CUgraph *graph,
                                            const CUgraphNode **nodes, const void **edges, size_t *n) {
    return capture_info(stream, status, id, graph, nodes, edges, n);
}

API cudaError_t cudaGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *list, size_t *n) {
    TRY(ready());
    return end(driver.cuGraphNodeGetDependencies(node, list, NULL, n));
}
#endif
