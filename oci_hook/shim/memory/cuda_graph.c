/* Memory nodes of graphs. When a graph is launched or uploaded, it takes its memory from a graph pool of its device,
 * and that pool keeps it. So a launch is charged like an allocation from a pool, for what its nodes allocate. */
#include <stdlib.h>

#include "driver/real.h"
#include "gate/cost.h"
#include "gate/gate.h"
#include "memory/cuda_pool.h"

#define NESTED 16 /* levels of child graphs that are read */

struct memory_node {
    CUdeviceptr at;
    uint64_t units;
    int device;
    enum { LASTS, FREED_INSIDE, FREES } what;
};

struct needs { /* what one launch of a graph may allocate and free */
    uint64_t bytes[GH_DEVICES];
    bool frees_first; /* CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH: frees what the last launch left */
    bool failed;      /* no memory to note all nodes */
    size_t count, room;
    struct memory_node *node;
};

static void add_node(struct needs *n, struct memory_node node) {
    if (n->count == n->room) {
        size_t room = n->room ? 2 * n->room : 8;
        struct memory_node *more = realloc(n->node, room * sizeof *more);
        if (!more) {
            n->failed = true;
            return;
        }
        n->node = more;
        n->room = room;
    }
    n->node[n->count++] = node;
}

static void read_node(CUgraphNode node, struct needs *n) {
    int type;
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    CUdeviceptr at;
    if (REAL(cuGraphNodeGetType)(node, &type))
        return;
    if (type == CU_GRAPH_NODE_TYPE_MEM_FREE && !REAL(cuGraphMemFreeNodeGetParams)(node, &at))
        add_node(n, (struct memory_node){at, 0, 0, FREES});
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || REAL(cuGraphMemAllocNodeGetParams)(node, &params))
        return;
    int device = params.pool.location.id;
    if (on_host(&params.pool.location) || device < 0 || device >= GH_DEVICES)
        return;
    add_node(n, (struct memory_node){params.pointer, gh_units(params.bytes), device, LASTS});
    n->bytes[device] += gh_bytes(gh_units(params.bytes));
}

static void read_graph(CUgraph graph, struct needs *n, int depth) {
    size_t count = 0;
    int type;
    CUgraph child;
    if (depth > NESTED || REAL(cuGraphGetNodes)(graph, NULL, &count) || !count)
        return;
    CUgraphNode *node = calloc(count, sizeof *node);
    n->failed |= !node;
    if (node && !REAL(cuGraphGetNodes)(graph, node, &count))
        for (size_t i = 0; i < count; i++) {
            read_node(node[i], n);
            if (!REAL(cuGraphNodeGetType)(node[i], &type) && type == CU_GRAPH_NODE_TYPE_GRAPH &&
                !REAL(cuGraphChildGraphNodeGetGraph)(node[i], &child))
                read_graph(child, n, depth + 1);
        }
    free(node);
}

static void read_needs(CUgraph graph, struct needs *n) {
    *n = (struct needs){0};
    read_graph(graph, n, 0);
    for (size_t i = 0; i < n->count; i++)
        for (size_t k = 0; n->node[i].what == FREES && k < n->count; k++)
            if (n->node[k].what == LASTS && n->node[k].at == n->node[i].at)
                n->node[k].what = FREED_INSIDE;
}

static void forget(struct needs *n) {
    if (n)
        free(n->node);
    free(n);
}

static bool may_allocate(struct gh_state *st) { return st && atomic_load(&st->pools.graphs_allocate); }

static struct needs *needs_of(struct gh_state *st, CUgraphExec exec) {
    if (!may_allocate(st))
        return NULL;
    return (struct needs *)(uintptr_t)gh_pointers_get(&st->pointers, key_of(EXEC, (uintptr_t)exec));
}

/* ---- growth of the devices' graph pools ---- */

struct growths {
    struct growth of[GH_ACCOUNT_GPUS];
    int count;
};

static bool is_ours(struct gh_state *st, CUdeviceptr at) {
    return kind_of(gh_pointers_get(&st->pointers, key_of(GRAPHED, at))) == GRAPHED;
}

static void end(struct growths *g) {
    while (g->count)
        pool_end(&g->of[--g->count]); /* a launch cannot be undone, so what it took is charged */
}

static CUresult begin(struct growths *g, struct gh_state *st, const struct needs *n) {
    CUresult r = CUDA_SUCCESS;
    g->count = 0;
    for (int d = 0; d < GH_DEVICES && r == CUDA_SUCCESS; d++) {
        uint64_t back = 0;
        if (!n->bytes[d])
            continue;
        for (size_t i = 0; n->frees_first && i < n->count; i++)
            if (n->node[i].what == LASTS && n->node[i].device == d && is_ours(st, n->node[i].at))
                back += gh_bytes(n->node[i].units);
        int gpu = gpu_of_device(st, d);
        struct gh_pool *pool = gpu >= 0 ? graph_pool(st, d, gpu) : NULL;
        if (!pool || g->count == GH_ACCOUNT_GPUS)
            r = CUDA_ERROR_OUT_OF_MEMORY;
        else if (!(r = pool_begin(&g->of[g->count], st, pool, n->bytes[d], back)))
            g->count++;
    }
    if (r)
        end(g);
    return r;
}

/* Notes the memory that the launch left allocated, so that the next launch knows of it. The graph pool is charged. */
static void launched(struct gh_state *st, const struct needs *n, bool ok) {
    for (size_t i = 0; i < n->count; i++) {
        uint64_t key = key_of(GRAPHED, n->node[i].at);
        if (n->node[i].what == LASTS && ok)
            gh_pointers_put(&st->pointers, key, pack(n->node[i].units, 0, 0, GRAPHED));
        else if (is_ours(st, n->node[i].at))
            gh_pointers_take(&st->pointers, key);
    }
    atomic_store(&st->pools.dirty, 1);
}

typedef CUresult run_call(CUgraphExec, CUstream);

static CUresult run(CUgraphExec exec, CUstream stream, run_call *call, bool launch) {
    struct gh_state *st = gh_here();
    struct needs *n = needs_of(st, exec);
    struct growths g;
    if (!n)
        return call(exec, stream);
    CUresult r = begin(&g, st, n);
    if (r)
        return r;
    r = call(exec, stream);
    if (launch)
        launched(st, n, r == CUDA_SUCCESS);
    end(&g);
    return r;
}

#define UPLOAD(name)                                                                                    \
    static CUresult real_##name(CUgraphExec exec, CUstream stream) { return REAL(name)(exec, stream); } \
    GH_EXPORT CUresult name(CUgraphExec exec, CUstream stream) { return run(exec, stream, real_##name, false); }
UPLOAD(cuGraphUpload)
UPLOAD(cuGraphUpload_ptsz)

static uint64_t cost_key_of(CUgraphExec exec) { return cost_key(exec, ~0ull, 0, 0); }

#define LAUNCH(name, of)                                                                                \
    static CUresult real_##name(CUgraphExec exec, CUstream stream) { return REAL(name)(exec, stream); } \
    GH_EXPORT CUresult name(CUgraphExec exec, CUstream stream) {                                        \
        struct gate_pass pass;                                                                          \
        gate_begin(&pass, of, cost_key_of(exec), NULL);                                                 \
        return gate_end(&pass, run(exec, stream, real_##name, true));                                   \
    }
LAUNCH(cuGraphLaunch, PLAIN(stream))
LAUNCH(cuGraphLaunch_ptsz, PER_THREAD(stream))

/* ---- making graphs ---- */

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

#define ADD_NODE(name)                                                                                     \
    GH_EXPORT CUresult name(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, \
                            size_t count, CUgraphNodeParams *params) {                                     \
        note_nodes(params ? params->type : 0);                                                             \
        return REAL(name)(node, graph, after, edges, count, params);                                       \
    }
ADD_NODE(cuGraphAddNode_v2)
ADD_NODE(cuGraphAddNode_v3)

struct making {
    struct gh_state *st;
    struct needs *n; /* NULL: the graph takes no memory */
    struct growths g;
};

static CUresult make(struct making *m, CUgraph graph, uint64_t flags) {
    *m = (struct making){.st = gh_here()};
    if (!may_allocate(m->st))
        return CUDA_SUCCESS;
    if (!(m->n = malloc(sizeof *m->n)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    read_needs(graph, m->n);
    m->n->frees_first = flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    CUresult r = m->n->failed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS && flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
        r = begin(&m->g, m->st, m->n);
    if (r || !m->n->count) {
        forget(m->n);
        m->n = NULL;
    }
    return r;
}

static CUresult made(struct making *m, CUresult r, CUgraphExec *exec) {
    end(&m->g);
    if (!m->n)
        return r;
    if (r == CUDA_SUCCESS && !gh_pointers_put(&m->st->pointers, key_of(EXEC, (uintptr_t)*exec), (uintptr_t)m->n)) {
        REAL(cuGraphExecDestroy)(*exec);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r)
        forget(m->n);
    return r;
}

#define MAKE(name, parameters, arguments, flags)             \
    GH_EXPORT CUresult name parameters {                     \
        struct making m;                                     \
        CUresult r = make(&m, graph, flags);                 \
        return r ? r : made(&m, REAL(name) arguments, exec); \
    }
/* CUDA_GRAPH_INSTANTIATE_PARAMS begins with its flags. */
#define FLAGS_IN(params) ((params) ? *(const uint64_t *)(params) : 0)
MAKE(cuGraphInstantiate, (CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size),
     (exec, graph, error, log, size), 0)
MAKE(cuGraphInstantiate_v2, (CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size),
     (exec, graph, error, log, size), 0)
MAKE(cuGraphInstantiateWithFlags, (CUgraphExec *exec, CUgraph graph, uint64_t flags), (exec, graph, flags), flags)
MAKE(cuGraphInstantiateWithParams, (CUgraphExec *exec, CUgraph graph, void *params), (exec, graph, params),
     FLAGS_IN(params))
MAKE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *exec, CUgraph graph, void *params), (exec, graph, params),
     FLAGS_IN(params))

static CUresult updated(CUresult r, CUgraphExec exec, CUgraph graph) {
    struct needs *n = r == CUDA_SUCCESS ? needs_of(gh_here(), exec) : NULL, now;
    if (!n)
        return r;
    read_needs(graph, &now);
    now.frees_first = n->frees_first;
    free(n->node);
    *n = now;
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
    if (r == CUDA_SUCCESS)
        gate_forget(cost_key_of(exec));
    if (note && r != CUDA_SUCCESS)
        gh_pointers_put(&st->pointers, key_of(EXEC, (uintptr_t)exec), note);
    else if (note) {
        forget((struct needs *)(uintptr_t)note);
        atomic_store(&st->pools.dirty, 1);
    }
    return r;
}
