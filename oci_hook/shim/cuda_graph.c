/* Memory nodes of graphs. A graph takes its memory from a pool of its device's own when it is launched or uploaded,
 * and that pool keeps it; so a launch is charged like an allocation from a pool, by what the graph's nodes allocate. */
#include <stdlib.h>

#include "cuda_pool.h"
#include "real.h"

#define NESTED 16 /* child graphs within child graphs */

struct needs { /* bytes that one launch may take, per device */
    uint64_t bytes[GH_DEVICES];
    bool frees_first; /* CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH: what the last launch took comes back */
    _Atomic uint32_t launched;
};

static void add_up(CUgraph graph, struct needs *n, int depth) {
    size_t count = 0;
    int type;
    CUgraph child;
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    if (depth > NESTED || REAL(cuGraphGetNodes)(graph, NULL, &count) || !count)
        return;
    CUgraphNode *node = calloc(count, sizeof *node);
    if (node && !REAL(cuGraphGetNodes)(graph, node, &count))
        for (size_t i = 0; i < count; i++) {
            if (REAL(cuGraphNodeGetType)(node[i], &type))
                continue;
            if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !REAL(cuGraphMemAllocNodeGetParams)(node[i], &params)) {
                if (!on_host(&params.pool.location) && params.pool.location.id >= 0 &&
                    params.pool.location.id < GH_DEVICES)
                    n->bytes[params.pool.location.id] += params.bytes;
            } else if (type == CU_GRAPH_NODE_TYPE_GRAPH && !REAL(cuGraphChildGraphNodeGetGraph)(node[i], &child)) {
                add_up(child, n, depth + 1);
            }
        }
    free(node);
}

static bool may_allocate(struct gh_state *st) { return st && atomic_load(&st->pools.graphs_allocate); }

static CUresult instantiated(CUresult r, const CUgraphExec *exec, CUgraph graph, uint64_t flags) {
    struct gh_state *st = gh_here();
    struct needs sum = {0}, *kept;
    bool any = false;
    if (r != CUDA_SUCCESS || !may_allocate(st))
        return r;
    add_up(graph, &sum, 0);
    for (int d = 0; d < GH_DEVICES; d++)
        any |= sum.bytes[d] != 0;
    if (any && (kept = malloc(sizeof *kept))) {
        *kept = sum;
        kept->frees_first = flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        gh_pointers_put(&st->pointers, key_of(EXEC, (uintptr_t)*exec), (uintptr_t)kept);
    }
    return r;
}

typedef CUresult run_call(CUgraphExec, CUstream);

static CUresult run(CUgraphExec exec, CUstream stream, run_call *call) {
    struct gh_state *st = gh_here();
    struct needs *n = NULL;
    if (may_allocate(st))
        n = (struct needs *)(uintptr_t)gh_pointers_get(&st->pointers, key_of(EXEC, (uintptr_t)exec));
    if (!n)
        return call(exec, stream);
    struct growth g[GH_ACCOUNT_CARDS];
    int begun = 0;
    CUresult r = CUDA_SUCCESS;
    bool back = n->frees_first && atomic_load(&n->launched);
    for (int d = 0; d < GH_DEVICES && r == CUDA_SUCCESS; d++)
        if (n->bytes[d]) {
            int card = card_of_device(st, d);
            struct gh_pool *pool = card >= 0 ? graph_pool(st, d, card) : NULL;
            if (!pool || begun == GH_ACCOUNT_CARDS)
                r = CUDA_ERROR_OUT_OF_MEMORY;
            else if (!(r = pool_begin(&g[begun], st, pool, n->bytes[d], back ? n->bytes[d] : 0)))
                begun++;
        }
    if (r == CUDA_SUCCESS)
        r = call(exec, stream);
    if (r == CUDA_SUCCESS)
        atomic_store(&n->launched, 1);
    while (begun--)
        pool_end(&g[begun]); /* a launch cannot be undone: what it took is booked */
    return r;
}

#define RUN(name)                                                                                                    \
    static CUresult real_##name(CUgraphExec exec, CUstream stream) { return REAL(name)(exec, stream); }              \
    GH_EXPORT CUresult name(CUgraphExec exec, CUstream stream) { return run(exec, stream, real_##name); }
RUN(cuGraphLaunch)
RUN(cuGraphLaunch_ptsz)
RUN(cuGraphUpload)
RUN(cuGraphUpload_ptsz)

static void note_nodes(int type) {
    struct gh_state *st = gh_here();
    if (st && type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        atomic_store(&st->pools.graphs_allocate, 1);
}

GH_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                          CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    note_nodes(CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    return REAL(cuGraphAddMemAllocNode)(node, graph, after, count, params);
}

GH_EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                  CUgraphNodeParams *params) {
    note_nodes(params ? params->type : 0);
    return REAL(cuGraphAddNode)(node, graph, after, count, params);
}

#define ADD_NODE(name)                                                                                               \
    GH_EXPORT CUresult name(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,           \
                            size_t count, CUgraphNodeParams *params) {                                               \
        note_nodes(params ? params->type : 0);                                                                       \
        return REAL(name)(node, graph, after, edges, count, params);                                                 \
    }
ADD_NODE(cuGraphAddNode_v2)
ADD_NODE(cuGraphAddNode_v3)

GH_EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    return instantiated(REAL(cuGraphInstantiate)(exec, graph, error, log, size), exec, graph, 0);
}
GH_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    return instantiated(REAL(cuGraphInstantiate_v2)(exec, graph, error, log, size), exec, graph, 0);
}
GH_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, uint64_t flags) {
    return instantiated(REAL(cuGraphInstantiateWithFlags)(exec, graph, flags), exec, graph, flags);
}
/* CUDA_GRAPH_INSTANTIATE_PARAMS begins with its flags. */
static uint64_t flags_in(const void *params) { return params ? *(const uint64_t *)params : 0; }

GH_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *params) {
    return instantiated(REAL(cuGraphInstantiateWithParams)(exec, graph, params), exec, graph, flags_in(params));
}
GH_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *params) {
    return instantiated(REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, params), exec, graph, flags_in(params));
}

static CUresult updated(CUresult r, CUgraphExec exec, CUgraph graph) {
    struct gh_state *st = gh_here();
    struct needs *n = NULL, sum = {0};
    if (r == CUDA_SUCCESS && may_allocate(st))
        n = (struct needs *)(uintptr_t)gh_pointers_get(&st->pointers, key_of(EXEC, (uintptr_t)exec));
    if (n) {
        add_up(graph, &sum, 0);
        for (int d = 0; d < GH_DEVICES; d++)
            n->bytes[d] = sum.bytes[d];
    }
    return r;
}

GH_EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error, int *result) {
    return updated(REAL(cuGraphExecUpdate)(exec, graph, error, result), exec, graph);
}
GH_EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void *info) {
    return updated(REAL(cuGraphExecUpdate_v2)(exec, graph, info), exec, graph);
}

GH_EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec) {
    struct gh_state *st = gh_here();
    uint64_t note = may_allocate(st) ? gh_pointers_take(&st->pointers, key_of(EXEC, (uintptr_t)exec)) : 0;
    CUresult r = REAL(cuGraphExecDestroy)(exec);
    if (note && r != CUDA_SUCCESS)
        gh_pointers_put(&st->pointers, key_of(EXEC, (uintptr_t)exec), note);
    else if (note) {
        free((void *)(uintptr_t)note);
        atomic_store(&st->pools.dirty, 1);
    }
    return r;
}
