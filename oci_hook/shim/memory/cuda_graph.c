/* Memory nodes of graphs. When a graph is launched or uploaded, it takes its memory from a graph pool of its device,
 * and that pool keeps it. So a launch is charged like an allocation from a pool, for what its nodes allocate. */
#include <stdlib.h>

#include "driver/real.h"
#include "gate/cost.h"
#include "gate/gate.h"
#include "gate/gate_forget.h"
#include "memory/charge.h"
#include "memory/cuda_pool.h"

#define NESTED 256 /* levels of child graphs that are read; a deeper graph is refused */

struct memory_node {
    CUdeviceptr at;
    uint64_t units;
    int device;
    enum { LASTS, FREED_INSIDE, FREES } what;
    CUgraphNode in; /* the graph's own node whose child graph has it, however deep; NULL: the graph itself */
};

struct needs { /* what one launch of a graph may allocate and free */
    uint64_t bytes[GH_DEVICES];
    bool frees_first; /* CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH: frees what the last launch left */
    bool failed;      /* not all nodes could be noted: launches are refused */
    CUgraphNode in;   /* while its child graph is read */
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
    node.in = n->in;
    n->node[n->count++] = node;
}

static void read_allocation(CUgraphNode node, struct needs *n) {
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    if (REAL(cuGraphMemAllocNodeGetParams)(node, &params)) {
        n->failed = true;
        return;
    }
    int device = params.pool.location.id;
    if (on_host(&params.pool.location, params.pool.type))
        return;
    if (device < 0 || device >= GH_DEVICES) {
        n->failed = true;
        return;
    }
    add_node(n, (struct memory_node){params.pointer, gh_units(params.bytes), device, LASTS, NULL});
    n->bytes[device] += gh_bytes(gh_units(params.bytes));
}

static void read_nodes(CUgraphNode *node, size_t count, struct needs *n, int depth);

static void read_graph(CUgraph graph, struct needs *n, int depth) {
    size_t count = 0, room;
    CUgraphNode *node = NULL;
    CUresult r = REAL(cuGraphGetNodes)(graph, NULL, &count);
    n->failed |= r || depth > NESTED;
    if (n->failed || !count)
        return;
    do { /* once more if another thread added nodes meanwhile */
        free(node);
        room = count + 8;
        node = calloc(room, sizeof *node);
        count = room;
    } while (node && !(r = REAL(cuGraphGetNodes)(graph, node, &count)) && count >= room);
    n->failed |= !node || r;
    if (!n->failed)
        read_nodes(node, count, n, depth);
    free(node);
}

static void read_child(CUgraphNode node, CUgraph child, struct needs *n, int depth) {
    if (!depth)
        n->in = node;
    read_graph(child, n, depth + 1);
    if (!depth)
        n->in = NULL;
}

/* A node that the driver does not describe may allocate. */
static void read_node(CUgraphNode node, struct needs *n, int depth) {
    int type;
    CUgraph child;
    CUdeviceptr at;
    CUresult r = REAL(cuGraphNodeGetType)(node, &type);
    if (r == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        read_allocation(node, n);
    else if (r == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEM_FREE &&
             !(r = REAL(cuGraphMemFreeNodeGetParams)(node, &at)))
        add_node(n, (struct memory_node){at, 0, 0, FREES, NULL});
    else if (r == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH &&
             !(r = REAL(cuGraphChildGraphNodeGetGraph)(node, &child)))
        read_child(node, child, n, depth);
    n->failed |= r != CUDA_SUCCESS;
}

static void read_nodes(CUgraphNode *node, size_t count, struct needs *n, int depth) {
    for (size_t i = 0; i < count; i++)
        read_node(node[i], n, depth);
}

static void find_freed(struct needs *n) {
    for (size_t i = 0; i < n->count; i++)
        for (size_t k = 0; n->node[i].what == FREES && k < n->count; k++)
            if (n->node[k].what == LASTS && n->node[k].at == n->node[i].at)
                n->node[k].what = FREED_INSIDE;
}

static void read_needs(CUgraph graph, struct needs *n) {
    *n = (struct needs){0};
    read_graph(graph, n, 0);
    find_freed(n);
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
    CUresult r = n->failed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
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
        else if (!(r = pool_begin(&g->of[g->count], st, pool, graph_pool_handle(d), n->bytes[d], back)))
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

/* A launch cannot be tried. So the driver is asked for the stream alone; the default ones always exist. */
static CUresult launch_refused(CUstream stream) {
    int status;
    return refused(stream ? REAL(cuStreamIsCapturing)(stream, &status) : CUDA_SUCCESS);
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
        return launch_refused(stream);
    r = call(exec, stream);
    if (launch)
        launched(st, n, r == CUDA_SUCCESS);
    end(&g);
    return r;
}

GH_EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    return run(exec, stream, REAL(cuGraphUpload), false);
}
GH_EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    return run(exec, stream, REAL(cuGraphUpload_ptsz), false);
}

static uint64_t cost_key_of(CUgraphExec exec) { return cost_key(exec, ~0ull, 0, 0); }

/* in: the stream as the gate knows it. */
static CUresult launch(CUgraphExec exec, CUstream stream, CUstream in, run_call *call) {
    struct gate_pass pass;
    gate_begin(&pass, in, cost_key_of(exec), NULL);
    return gate_end(&pass, run(exec, stream, call, true));
}
GH_EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    return launch(exec, stream, PLAIN(stream), REAL(cuGraphLaunch));
}
GH_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    return launch(exec, stream, PER_THREAD(stream), REAL(cuGraphLaunch_ptsz));
}

/* ---- making graphs ---- */

static void note_nodes(int type) {
    struct gh_state *st = gh_here();
    if (st && type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        atomic_store(&st->pools.graphs_allocate, 1);
}

GH_EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                          CUDA_MEM_ALLOC_NODE_PARAMS *given) {
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    note_nodes(CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if (!given)
        return REAL(cuGraphAddMemAllocNode)(node, graph, after, count, given);
    copy_once(&params, given, sizeof params);
    CUresult r = REAL(cuGraphAddMemAllocNode)(node, graph, after, count, &params);
    if (r == CUDA_SUCCESS)
        given->pointer = params.pointer;
    return r;
}

struct node_params { /* what the driver gets, and what the program passed */
    CUgraphNodeParams now, before;
};

static CUgraphNodeParams *copy_params(struct node_params *copy, const CUgraphNodeParams *given) {
    if (!given)
        return NULL;
    copy_once(&copy->now, given, sizeof copy->now);
    copy->before = copy->now;
    note_nodes(copy->now.type);
    return &copy->now;
}

/* Some kinds of nodes return something in their parameters; those of others may lie in read-only memory. */
static CUresult return_params(struct node_params *copy, CUresult r, CUgraphNodeParams *given) {
    if (r == CUDA_SUCCESS && given && memcmp(&copy->now, &copy->before, sizeof copy->now))
        memcpy(given, &copy->now, sizeof *given);
    return r;
}

GH_EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                  CUgraphNodeParams *given) {
    struct node_params copy;
    CUgraphNodeParams *params = copy_params(&copy, given);
    return return_params(&copy, REAL(cuGraphAddNode)(node, graph, after, count, params), given);
}
GH_EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
                                     size_t count, CUgraphNodeParams *given) {
    struct node_params copy;
    CUgraphNodeParams *params = copy_params(&copy, given);
    return return_params(&copy, REAL(cuGraphAddNode_v2)(node, graph, after, edges, count, params), given);
}
GH_EXPORT CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges,
                                     size_t count, CUgraphNodeParams *given) {
    struct node_params copy;
    CUgraphNodeParams *params = copy_params(&copy, given);
    return return_params(&copy, REAL(cuGraphAddNode_v3)(node, graph, after, edges, count, params), given);
}

struct making {
    struct gh_state *st;
    CUgraph graph;
    uint64_t flags;
    struct growths g;
};

static CUresult needs_now(const struct making *m, struct needs **n) {
    *n = NULL;
    if (!may_allocate(m->st))
        return CUDA_SUCCESS;
    if (!(*n = malloc(sizeof **n)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    read_needs(m->graph, *n);
    (*n)->frees_first = m->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    return (*n)->failed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* A graph whose memory is refused is tried without the upload flag, which takes none. No graph stands for one that the
 * driver does not know. */
static CUgraph without_upload(CUgraph graph, uint64_t *flags) {
    size_t count;
    if (REAL(cuGraphGetNodes)(graph, NULL, &count))
        return NULL;
    *flags &= ~CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    return graph;
}

static CUresult make_refused(CUresult asked, CUgraphExec now) {
    if (asked == CUDA_SUCCESS)
        REAL(cuGraphExecDestroy)(now);
    return refused(asked);
}

/* With the upload flag, the driver takes the graph's memory at once. */
static CUresult make(struct making *m, CUgraph graph, uint64_t flags) {
    struct needs *n = NULL;
    *m = (struct making){.st = gh_here(), .graph = graph, .flags = flags};
    if (!(flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
        return CUDA_SUCCESS;
    CUresult r = needs_now(m, &n);
    if (r == CUDA_SUCCESS && n)
        r = begin(&m->g, m->st, n);
    forget(n);
    return r;
}

/* Reads the nodes after the driver did: memory nodes cannot be removed from a graph, so what another thread added
 * meanwhile is at worst charged though the executable graph does not have it. */
static CUresult made(struct making *m, CUresult r, const CUgraphExec *now, CUgraphExec *exec) {
    struct needs *n = NULL;
    end(&m->g);
    if (r)
        return r;
    r = needs_now(m, &n);
    if (r == CUDA_SUCCESS && n && n->count &&
        gh_pointers_put(&m->st->pointers, key_of(EXEC, (uintptr_t)*now), (uintptr_t)n))
        n = NULL; /* the map has it */
    else if (r == CUDA_SUCCESS && n && n->count)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    forget(n);
    if (r)
        REAL(cuGraphExecDestroy)(*now);
    else
        *exec = *now;
    return r;
}

GH_EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    struct making m;
    CUgraphExec now = NULL;
    CUresult r = make(&m, graph, 0);
    return r ? r : made(&m, REAL(cuGraphInstantiate)(exec ? &now : NULL, graph, error, log, size), &now, exec);
}
GH_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log, size_t size) {
    struct making m;
    CUgraphExec now = NULL;
    CUresult r = make(&m, graph, 0);
    return r ? r : made(&m, REAL(cuGraphInstantiate_v2)(exec ? &now : NULL, graph, error, log, size), &now, exec);
}
GH_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, uint64_t flags) {
    struct making m;
    CUgraphExec now = NULL;
    if (!exec)
        return REAL(cuGraphInstantiateWithFlags)(exec, graph, flags);
    if (!make(&m, graph, flags))
        return made(&m, REAL(cuGraphInstantiateWithFlags)(&now, graph, flags), &now, exec);
    graph = without_upload(graph, &flags);
    CUresult asked = REAL(cuGraphInstantiateWithFlags)(&now, graph, flags);
    return make_refused(asked, now);
}

typedef CUresult params_call(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *);

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *given, params_call *call) {
    struct making m;
    CUDA_GRAPH_INSTANTIATE_PARAMS params;
    CUgraphExec now = NULL;
    if (!given || !exec)
        return call(exec, graph, given);
    copy_once(&params, given, sizeof params);
    CUresult r = make(&m, graph, params.flags);
    if (r) {
        graph = without_upload(graph, &params.flags);
        r = call(&now, graph, &params);
        return make_refused(r, now);
    }
    r = call(&now, graph, &params);
    given->error = params.error;
    given->result = params.result;
    return made(&m, r, &now, exec);
}

GH_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                                CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    return instantiate(exec, graph, params, REAL(cuGraphInstantiateWithParams));
}
GH_EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                     CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    return instantiate(exec, graph, params, REAL(cuGraphInstantiateWithParams_ptsz));
}

/* The nodes of an executable graph keep their kinds, but their sizes may change. */
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

/* The driver has replaced the child graph of that node, in the executable graph alone. Memory of a node within a child
 * graph is not known to be replaced, and counts with the new one's. */
static CUresult child_set(CUresult r, CUgraphExec exec, CUgraphNode node, CUgraph child) {
    struct needs *n = r == CUDA_SUCCESS ? needs_of(gh_here(), exec) : NULL;
    size_t kept = 0;
    for (size_t i = 0; n && i < n->count; i++)
        if (n->node[i].in != node)
            n->node[kept++] = n->node[i];
        else
            n->bytes[n->node[i].device] -= gh_bytes(n->node[i].units);
    if (n) {
        n->count = kept;
        read_child(node, child, n, 0);
        find_freed(n);
    }
    return r;
}

GH_EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
    return child_set(REAL(cuGraphExecChildGraphNodeSetParams)(exec, node, child), exec, node, child);
}
GH_EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *given) {
    struct node_params copy;
    CUgraphNodeParams *params = copy_params(&copy, given);
    CUresult r = return_params(&copy, REAL(cuGraphExecNodeSetParams)(exec, node, params), given);
    bool child = given && copy.before.type == CU_GRAPH_NODE_TYPE_GRAPH;
    return child ? child_set(r, exec, node, copy.before.child) : r;
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
