/* Simulated libcuda: graphs and their memory. The device's graph pool grows when a launch needs more than it has and
 * keeps freed memory; only cuDeviceGraphMemTrim releases it. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GRAPH_MAGIC 0x67726170682d7369ull
#define EXEC_MAGIC 0x657865632d73696dull
enum { AUTO_FREE_ON_LAUNCH = 1, UPLOAD = 2 }; /* CUDA_GRAPH_INSTANTIATE_FLAG_... */

/* --- graph memory --- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint64_t used, used_high, reserved, reserved_high;
} memory[GPU_MAX];

/* A launch uses `peak` more bytes at its peak and `after` more bytes after it. */
static CUresult memory_grow(int device, uint64_t peak, uint64_t lasting) {
    struct gpu *gpu = &sim_gpu[device];
    CUresult r = CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    uint64_t need = round_up(memory[device].used + peak, BLOCK);
    if (need > memory[device].reserved) {
        if (heap_book(gpu, need - memory[device].reserved))
            memory[device].reserved = need;
        else
            r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!r) {
        if (memory[device].reserved > memory[device].reserved_high)
            memory[device].reserved_high = memory[device].reserved;
        if (memory[device].used + peak > memory[device].used_high)
            memory[device].used_high = memory[device].used + peak;
        memory[device].used += lasting;
    }
    pthread_mutex_unlock(&mutex);
    return r;
}

void graph_memory_free(struct piece piece) {
    pthread_mutex_lock(&mutex);
    memory[piece.ctx->device].used -= piece.size;
    pthread_mutex_unlock(&mutex);
    madvise((void *)(uintptr_t)piece.address, piece.size, MADV_DONTNEED);
}

API CUresult cuDeviceGraphMemTrim(CUdevice dev) {
    TRY(sim_device(dev));
    pthread_mutex_lock(&mutex);
    uint64_t keep = round_up(memory[dev].used, BLOCK);
    if (memory[dev].reserved > keep) {
        gpu_release(&sim_gpu[dev], memory[dev].reserved - keep);
        memory[dev].reserved = keep;
    }
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, int attribute, uint64_t *value) {
    TRY(sim_device(dev));
    if (!value || attribute < 0 || attribute > 3)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    const uint64_t figures[] = {memory[dev].used, memory[dev].used_high, memory[dev].reserved,
                                memory[dev].reserved_high};
    *value = figures[attribute];
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetGraphMemAttribute(CUdevice dev, int attribute, const uint64_t *value) {
    TRY(sim_device(dev));
    if (!value || *value || (attribute != 1 && attribute != 3)) /* only the high marks can be set, and only to 0 */
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    if (attribute == 1)
        memory[dev].used_high = memory[dev].used;
    else
        memory[dev].reserved_high = memory[dev].reserved;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

/* --- building --- */

CUresult graph_new(struct graph **out) {
    TRY(sim_ready());
    struct graph *g = out ? calloc(1, sizeof *g) : NULL;
    if (!g)
        return out ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    g->magic = GRAPH_MAGIC;
    *out = g;
    return CUDA_SUCCESS;
}

void graph_destroy(struct graph *g) {
    while (g->first) {
        struct node *n = g->first;
        g->first = n->next;
        if (n->op.type == NODE_GRAPH)
            graph_destroy(n->op.child);
        if (n->op.type == NODE_MEMOP)
            free(n->op.memop.list);
        free(n->before);
        free(n);
    }
    g->magic = 0;
    free(g);
}

static CUresult valid(const struct graph *g) {
    TRY(sim_ready());
    return g && g->magic == GRAPH_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult graph_add(struct graph *g, struct node *const *before, size_t n, const struct op *op, struct node **out) {
    TRY(valid(g));
    if (!out || (n && !before))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++)
        if (!before[i] || before[i]->graph != g)
            return CUDA_ERROR_INVALID_VALUE;
    struct node *node = calloc(1, sizeof *node);
    if (node && n)
        node->before = malloc(n * sizeof *before);
    if (!node || (n && !node->before)) {
        free(node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (n)
        memcpy(node->before, before, n * sizeof *before);
    node->graph = g;
    node->op = *op;
    node->n_before = n;
    if (g->last)
        g->last->next = node;
    else
        g->first = node;
    g->last = node;
    g->count++;
    *out = node;
    return CUDA_SUCCESS;
}

static CUresult copy_memops(struct op *op) {
    struct memop *list = op->memop.n ? malloc(op->memop.n * sizeof *list) : NULL;
    if (op->memop.n && !list)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (list)
        memcpy(list, op->memop.list, op->memop.n * sizeof *list);
    op->memop.list = list;
    return CUDA_SUCCESS;
}

static CUresult copy_of(struct graph **out, const struct graph *g) {
    struct graph *copy;
    TRY(graph_new(&copy));
    struct node **new = calloc(g->count + 1, sizeof *new), **map = calloc(g->count + 1, sizeof *map);
    size_t i = 0;
    CUresult r = new && map ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (struct node *n = g->first; n && !r; n = n->next, i++) {
        struct op op = n->op;
        if (op.type == NODE_GRAPH && (r = copy_of(&op.child, n->op.child)))
            break;
        if (op.type == NODE_MEMOP && (r = copy_memops(&op)))
            break;
        map[i] = n;
        if ((r = graph_add(copy, NULL, 0, &op, &new[i])))
            break;
        new[i]->before = n->n_before ? calloc(n->n_before, sizeof *n->before) : NULL;
        new[i]->n_before = n->n_before;
    }
    for (size_t k = 0; k < i && !r; k++)
        for (size_t d = 0; d < map[k]->n_before; d++)
            for (size_t j = 0; j < i; j++)
                if (map[j] == map[k]->before[d])
                    new[k]->before[d] = new[j];
    free(new);
    free(map);
    if (r)
        graph_destroy(copy);
    else
        *out = copy;
    return r;
}

API CUresult cuGraphCreate(struct graph **out, unsigned flags) {
    return flags ? CUDA_ERROR_INVALID_VALUE : graph_new(out);
}

API CUresult cuGraphDestroy(struct graph *g) {
    TRY(valid(g));
    graph_destroy(g);
    return CUDA_SUCCESS;
}

API CUresult cuGraphClone(struct graph **out, struct graph *g) {
    TRY(valid(g));
    for (struct node *n = g->first; n; n = n->next)
        if (n->op.type == NODE_ALLOC || n->op.type == NODE_FREE)
            return CUDA_ERROR_NOT_SUPPORTED;
    return out ? copy_of(out, g) : CUDA_ERROR_INVALID_VALUE;
}

typedef struct node *const *nodes;

struct kernel_params { /* head of CUDA_KERNEL_NODE_PARAMS, all versions */
    CUfunction function;
    unsigned gx, gy, gz, bx, by, bz, shared;
    void **params;
};

static CUresult add_kernel(struct node **out, struct graph *g, nodes before, size_t n, const struct kernel_params *p) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!p || !p->function || !p->gx || !p->gy || !p->gz || !p->bx || !p->by || !p->bz)
        return CUDA_ERROR_INVALID_VALUE;
    struct op op = {.type = NODE_KERNEL};
    TRY(kernel_of(p->function, ctx->device, (uint64_t)p->gx * p->gy * p->gz, p->params, &op.kernel));
    return graph_add(g, before, n, &op, out);
}

API CUresult cuGraphAddKernelNode(struct node **out, struct graph *g, nodes b, size_t n,
                                  const struct kernel_params *p) {
    return add_kernel(out, g, b, n, p);
}

API CUresult cuGraphAddKernelNode_v2(struct node **out, struct graph *g, nodes b, size_t n,
                                     const struct kernel_params *p) {
    return add_kernel(out, g, b, n, p);
}

API CUresult cuGraphAddEmptyNode(struct node **out, struct graph *g, nodes before, size_t n) {
    struct op op = {.type = NODE_EMPTY};
    return graph_add(g, before, n, &op, out);
}

API CUresult cuGraphAddMemcpyNode(struct node **out, struct graph *g, nodes before, size_t n, const struct copy3d *copy,
                                  CUcontext ctx) {
    (void)ctx;
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    struct op op = {.type = NODE_COPY, .box = *copy};
    return graph_add(g, before, n, &op, out);
}

struct fill_params { /* CUDA_MEMSET_NODE_PARAMS */
    CUdeviceptr to;
    size_t pitch;
    unsigned value, width;
    size_t n, rows;
};

API CUresult cuGraphAddMemsetNode(struct node **out, struct graph *g, nodes before, size_t n,
                                  const struct fill_params *p, CUcontext ctx) {
    (void)ctx;
    if (!p || !p->to || (p->width != 1 && p->width != 2 && p->width != 4))
        return CUDA_ERROR_INVALID_VALUE;
    struct op op = {.type = NODE_FILL, .fill = {p->to, p->pitch, p->width, p->n, p->rows, p->value}};
    return graph_add(g, before, n, &op, out);
}

struct host_params { /* CUDA_HOST_NODE_PARAMS */
    void (*function)(void *);
    void *data;
};

API CUresult cuGraphAddHostNode(struct node **out, struct graph *g, nodes before, size_t n,
                                const struct host_params *p) {
    if (!p || !p->function)
        return CUDA_ERROR_INVALID_VALUE;
    struct op op = {.type = NODE_HOST, .host = {p->function, p->data}};
    return graph_add(g, before, n, &op, out);
}

API CUresult cuGraphAddChildGraphNode(struct node **out, struct graph *g, nodes before, size_t n, struct graph *child) {
    TRY(valid(child));
    struct op op = {.type = NODE_GRAPH};
    TRY(copy_of(&op.child, child));
    CUresult r = graph_add(g, before, n, &op, out);
    if (r)
        graph_destroy(op.child);
    return r;
}

API CUresult cuGraphChildGraphNodeGetGraph(struct node *node, struct graph **out) {
    TRY(sim_ready());
    if (!node || !out || node->op.type != NODE_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    *out = node->op.child;
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddEventRecordNode(struct node **out, struct graph *g, nodes before, size_t n, CUevent event) {
    struct op op = {.type = NODE_RECORD, .event = event};
    return event ? graph_add(g, before, n, &op, out) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphAddEventWaitNode(struct node **out, struct graph *g, nodes before, size_t n, CUevent event) {
    struct op op = {.type = NODE_WAIT, .event = event};
    return event ? graph_add(g, before, n, &op, out) : CUDA_ERROR_INVALID_VALUE;
}

CUresult graph_address(struct op *op, size_t bytes, int device) {
    TRY(sim_device(device));
    uint64_t size = round_up(bytes, GRAIN), at = bytes ? heap_map(round_up(size, 4096)) : 0;
    if (!at)
        return bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    *op = (struct op){.type = NODE_ALLOC, .memory = {at, size, device}};
    return CUDA_SUCCESS;
}

struct alloc_params { /* CUDA_MEM_ALLOC_NODE_PARAMS */
    int alloc_type, handle_types, location_type, location_id;
    void *win32;
    size_t max_size;
    unsigned short usage;
    unsigned char reserved[54];
    const void *access;
    size_t n_access, bytes;
    CUdeviceptr address;
};

_Static_assert(offsetof(struct alloc_params, access) == 88, "CUmemPoolProps");

API CUresult cuGraphAddMemAllocNode(struct node **out, struct graph *g, nodes before, size_t n,
                                    struct alloc_params *p) {
    struct op op;
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(valid(g));
    TRY(graph_address(&op, p->bytes, p->location_id));
    TRY(graph_add(g, before, n, &op, out));
    p->address = op.memory.address;
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddMemFreeNode(struct node **out, struct graph *g, nodes before, size_t n, CUdeviceptr address) {
    struct op op = {.type = NODE_FREE, .memory = {address, 0, 0}};
    return address ? graph_add(g, before, n, &op, out) : CUDA_ERROR_INVALID_VALUE;
}

struct memop_params { /* CUDA_BATCH_MEM_OP_NODE_PARAMS */
    CUcontext ctx;
    unsigned count;
    const void *list;
    unsigned flags;
};

API CUresult cuGraphAddBatchMemOpNode(struct node **out, struct graph *g, nodes before, size_t n,
                                      const struct memop_params *p) {
    struct op op = {.type = NODE_MEMOP};
    TRY(valid(g));
    if (!p || !p->count || p->count > 256 || !p->list || p->flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!(op.memop.list = malloc(p->count * sizeof *op.memop.list)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    op.memop.n = p->count;
    CUresult r = memops_of(p->list, p->count, op.memop.list);
    if (!r)
        r = graph_add(g, before, n, &op, out);
    if (r)
        free(op.memop.list);
    return r;
}

struct node_params { /* CUgraphNodeParams */
    int type, reserved[3];
    union {
        long long room[29];
        struct kernel_params kernel;
        struct {
            int flags, reserved;
            CUcontext ctx;
            struct copy3d box;
        } copy; /* CUDA_MEMCPY_NODE_PARAMS */
        struct fill_params fill;
        struct host_params host;
        struct graph *child;
        CUevent event;
        struct alloc_params alloc;
        CUdeviceptr free;
        struct memop_params memop;
    };
    long long reserved2;
};

static CUresult add_any(struct node **out, struct graph *g, nodes before, size_t n, struct node_params *p) {
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    switch (p->type) {
    case NODE_KERNEL: return add_kernel(out, g, before, n, &p->kernel);
    case NODE_COPY: return cuGraphAddMemcpyNode(out, g, before, n, &p->copy.box, p->copy.ctx);
    case NODE_FILL: return cuGraphAddMemsetNode(out, g, before, n, &p->fill, NULL);
    case NODE_HOST: return cuGraphAddHostNode(out, g, before, n, &p->host);
    case NODE_GRAPH: return cuGraphAddChildGraphNode(out, g, before, n, p->child);
    case NODE_EMPTY: return cuGraphAddEmptyNode(out, g, before, n);
    case NODE_WAIT: return cuGraphAddEventWaitNode(out, g, before, n, p->event);
    case NODE_RECORD: return cuGraphAddEventRecordNode(out, g, before, n, p->event);
    case NODE_ALLOC: return cuGraphAddMemAllocNode(out, g, before, n, &p->alloc);
    case NODE_FREE: return cuGraphAddMemFreeNode(out, g, before, n, p->free);
    case NODE_MEMOP: return cuGraphAddBatchMemOpNode(out, g, before, n, &p->memop);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

API CUresult cuGraphAddNode(struct node **out, struct graph *g, nodes before, size_t n, struct node_params *p) {
    return add_any(out, g, before, n, p);
}

API CUresult cuGraphAddNode_v2(struct node **out, struct graph *g, nodes before, const void *edges, size_t n,
                               struct node_params *p) {
    return (void)edges, add_any(out, g, before, n, p);
}

API CUresult cuGraphGetNodes(struct graph *g, struct node **out, size_t *n) {
    TRY(valid(g));
    if (!n)
        return CUDA_ERROR_INVALID_VALUE;
    size_t i = 0;
    for (struct node *node = g->first; out && node && i < *n; node = node->next)
        out[i++] = node;
    *n = out ? i : g->count;
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetType(struct node *node, int *type) {
    TRY(sim_ready());
    if (!node || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = (int)node->op.type;
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemAllocNodeGetParams(struct node *node, struct alloc_params *out) {
    TRY(sim_ready());
    if (!node || !out || node->op.type != NODE_ALLOC)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct alloc_params){.alloc_type = 1,
                                 .location_type = 1,
                                 .location_id = node->op.memory.device,
                                 .bytes = node->op.memory.size,
                                 .address = node->op.memory.address};
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemFreeNodeGetParams(struct node *node, CUdeviceptr *out) {
    TRY(sim_ready());
    if (!node || !out || node->op.type != NODE_FREE)
        return CUDA_ERROR_INVALID_VALUE;
    *out = node->op.memory.address;
    return CUDA_SUCCESS;
}

static CUresult add_dependencies(struct graph *g, nodes from, nodes to, size_t n) {
    TRY(valid(g));
    for (size_t i = 0; i < n; i++) {
        if (!from || !to || from[i]->graph != g || to[i]->graph != g)
            return CUDA_ERROR_INVALID_VALUE;
        struct node **more = realloc(to[i]->before, (to[i]->n_before + 1) * sizeof *more);
        if (!more)
            return CUDA_ERROR_OUT_OF_MEMORY;
        more[to[i]->n_before++] = from[i];
        to[i]->before = more;
    }
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddDependencies(struct graph *g, nodes from, nodes to, size_t n) {
    return add_dependencies(g, from, to, n);
}

API CUresult cuGraphAddDependencies_v2(struct graph *g, nodes from, nodes to, const void *edges, size_t n) {
    return (void)edges, add_dependencies(g, from, to, n);
}

/* --- executable graphs --- */

struct exec {
    uint64_t magic;
    unsigned long long flags;
    struct op *ops; /* in the order of execution; child graphs are expanded */
    size_t count;
};

static size_t size_of(const struct graph *g) {
    size_t n = 0;
    for (const struct node *node = g->first; node; node = node->next)
        n += node->op.type == NODE_GRAPH   ? size_of(node->op.child)
             : node->op.type == NODE_MEMOP ? node->op.memop.n + 1
                                           : 1;
    return n;
}

static void append(struct exec *e, const struct node *node) {
    unsigned n = node->op.type == NODE_MEMOP ? node->op.memop.n : 0;
    for (unsigned i = 0; i < n; i++)
        if (node->op.memop.list[i].kind != WORK_MARK)
            e->ops[e->count++] =
                (struct op){.type = NODE_MEMOP, .from = node, .memop = {.one = node->op.memop.list[i]}};
    if (n)
        return;
    e->ops[e->count] = node->op;
    e->ops[e->count++].from = node;
}

/* Appends the graph's operations, each after those that it depends on. CUDA_ERROR_INVALID_VALUE: there is a cycle. */
static CUresult flatten(const struct graph *g, struct exec *e) {
    const struct node **todo = malloc((g->count + 1) * sizeof *todo);
    size_t left = 0;
    if (!todo)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (const struct node *n = g->first; n; n = n->next)
        todo[left++] = n;
    CUresult r = CUDA_SUCCESS;
    while (left && !r) {
        size_t kept = 0, all = left;
        for (size_t i = 0; i < all && !r; i++) {
            bool ready = true;
            for (size_t d = 0; ready && d < todo[i]->n_before; d++)
                for (size_t j = 0; ready && j < all; j++)
                    ready = (j >= kept && j < i) || todo[j] != todo[i]->before[d];
            if (!ready)
                todo[kept++] = todo[i];
            else if (todo[i]->op.type == NODE_GRAPH)
                r = flatten(todo[i]->op.child, e);
            else
                append(e, todo[i]);
        }
        if (kept == all)
            r = CUDA_ERROR_INVALID_VALUE;
        left = kept;
    }
    free(todo);
    return r;
}

/* The most memory that a launch uses at once on one device, and the memory that remains after it. */
static void footprint(const struct exec *e, int device, uint64_t *peak, uint64_t *lasting) {
    uint64_t now = 0;
    *peak = 0;
    for (size_t i = 0; i < e->count; i++) {
        const struct op *op = &e->ops[i];
        if (op->type == NODE_ALLOC && op->memory.device == device) {
            now += op->memory.size;
            if (now > *peak)
                *peak = now;
        } else if (op->type == NODE_FREE)
            for (size_t j = 0; j < i; j++)
                if (e->ops[j].type == NODE_ALLOC && e->ops[j].memory.address == op->memory.address &&
                    e->ops[j].memory.device == device)
                    now -= e->ops[j].memory.size;
    }
    *lasting = now;
}

static bool freed_inside(const struct exec *e, size_t allocation) {
    for (size_t i = allocation + 1; i < e->count; i++)
        if (e->ops[i].type == NODE_FREE && e->ops[i].memory.address == e->ops[allocation].memory.address)
            return true;
    return false;
}

static CUresult exec_valid(const struct exec *e) {
    TRY(sim_ready());
    return e && e->magic == EXEC_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult upload(struct exec *e, CUstream handle) {
    struct stream *s;
    uint64_t peak, lasting;
    TRY(exec_valid(e));
    TRY(sim_stream(handle, &s));
    for (int dev = 0; dev < sim_gpus; dev++) {
        footprint(e, dev, &peak, &lasting);
        if (peak)
            TRY(memory_grow(dev, peak, 0));
    }
    return CUDA_SUCCESS;
}

static CUresult instantiate(struct exec **out, struct graph *g, unsigned long long flags, CUstream stream) {
    TRY(valid(g));
    if (!out || flags & ~15ull)
        return CUDA_ERROR_INVALID_VALUE;
    struct exec *e = calloc(1, sizeof *e);
    if (e)
        e->ops = calloc(size_of(g) + 1, sizeof *e->ops);
    CUresult r = e && e->ops ? flatten(g, e) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!r) {
        e->magic = EXEC_MAGIC;
        e->flags = flags;
        if (flags & UPLOAD)
            r = upload(e, stream);
    }
    if (r) {
        if (e)
            free(e->ops);
        free(e);
        return r;
    }
    *out = e;
    return CUDA_SUCCESS;
}

API CUresult cuGraphInstantiate(struct exec **out, struct graph *g, struct node **bad, char *log, size_t n) {
    return (void)bad, (void)log, (void)n, instantiate(out, g, 0, NULL);
}

API CUresult cuGraphInstantiate_v2(struct exec **out, struct graph *g, struct node **bad, char *log, size_t n) {
    return (void)bad, (void)log, (void)n, instantiate(out, g, 0, NULL);
}

API CUresult cuGraphInstantiateWithFlags(struct exec **out, struct graph *g, unsigned long long flags) {
    return flags & UPLOAD ? CUDA_ERROR_INVALID_VALUE : instantiate(out, g, flags, NULL);
}

struct instantiate_params { /* CUDA_GRAPH_INSTANTIATE_PARAMS */
    uint64_t flags;
    CUstream stream;
    struct node *bad;
    int result;
};

static CUresult with_params(struct exec **out, struct graph *g, struct instantiate_params *p) {
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = instantiate(out, g, p->flags, p->stream);
    p->bad = NULL;
    p->result = r ? 1 : 0; /* CUDA_GRAPH_INSTANTIATE_ERROR, _SUCCESS */
    return r;
}

API CUresult cuGraphInstantiateWithParams(struct exec **out, struct graph *g, struct instantiate_params *p) {
    return with_params(out, g, p);
}

API CUresult cuGraphInstantiateWithParams_ptsz(struct exec **out, struct graph *g, struct instantiate_params *p) {
    return with_params(out, g, p);
}

API CUresult cuGraphExecGetFlags(struct exec *e, uint64_t *flags) {
    TRY(exec_valid(e));
    *flags = e->flags;
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecDestroy(struct exec *e) {
    TRY(exec_valid(e));
    e->magic = 0;
    free(e->ops);
    free(e);
    return CUDA_SUCCESS;
}

static int update(struct exec *e, struct graph *g) {
    struct exec new = {.ops = calloc(size_of(g) + 1, sizeof *new.ops)};
    int result = !new.ops || flatten(g, &new) ? 1
                 : new.count != e->count      ? 2
                                              : 0; /* ERROR, TOPOLOGY_CHANGED, SUCCESS */
    for (size_t i = 0; !result && i < e->count; i++)
        if (new.ops[i].type != e->ops[i].type)
            result = 3; /* NODE_TYPE_CHANGED */
        else if (new.ops[i].type == NODE_ALLOC || new.ops[i].type == NODE_FREE)
            result = 6; /* NOT_SUPPORTED */
    if (result)
        free(new.ops);
    else {
        for (size_t i = 0; i < e->count; i++) /* the operations are still identified by the nodes of the first graph */
            new.ops[i].from = e->ops[i].from;
        free(e->ops);
        e->ops = new.ops;
    }
    return result;
}

API CUresult cuGraphExecUpdate(struct exec *e, struct graph *g, struct node **bad, int *result) {
    TRY(exec_valid(e));
    TRY(valid(g));
    int r = update(e, g);
    if (bad)
        *bad = NULL;
    if (result)
        *result = r;
    return r ? CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE : CUDA_SUCCESS;
}

struct update_info { /* CUgraphExecUpdateResultInfo */
    int result;
    struct node *bad, *bad_from;
};

API CUresult cuGraphExecUpdate_v2(struct exec *e, struct graph *g, struct update_info *info) {
    TRY(exec_valid(e));
    TRY(valid(g));
    *info = (struct update_info){update(e, g), NULL, NULL};
    return info->result ? CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE : CUDA_SUCCESS;
}

static CUresult set_kernel(struct exec *e, const struct node *node, const struct kernel_params *p) {
    CUcontext ctx;
    struct kernel kernel;
    TRY(exec_valid(e));
    TRY(sim_context(&ctx));
    if (!node || !p || !p->function || !p->gx || !p->gy || !p->gz || !p->bx || !p->by || !p->bz)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(kernel_of(p->function, ctx->device, (uint64_t)p->gx * p->gy * p->gz, p->params, &kernel));
    for (size_t i = 0; i < e->count; i++)
        if (e->ops[i].from == node && e->ops[i].type == NODE_KERNEL) {
            e->ops[i].kernel = kernel;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphExecKernelNodeSetParams(struct exec *e, struct node *n, const struct kernel_params *p) {
    return set_kernel(e, n, p);
}

API CUresult cuGraphExecKernelNodeSetParams_v2(struct exec *e, struct node *n, const struct kernel_params *p) {
    return set_kernel(e, n, p);
}

API CUresult cuGraphUpload(struct exec *e, CUstream s) { return upload(e, s); }
API CUresult cuGraphUpload_ptsz(struct exec *e, CUstream s) { return upload(e, PER_THREAD(s)); }

static CUresult run(const struct op *op, struct stream *s) {
    switch (op->type) {
    case NODE_KERNEL: return kernel_submit(s, &op->kernel);
    case NODE_MEMOP: return memops_submit(s, &op->memop.one, 1);
    case NODE_COPY:
        if (!op->flat)
            return copy_box_in(&op->box, s);
        TRY(copy_time(s, op->copy.to, op->copy.from, op->copy.bytes));
        memmove((void *)(uintptr_t)op->copy.to, (void *)(uintptr_t)op->copy.from, op->copy.bytes);
        return CUDA_SUCCESS;
    case NODE_FILL:
        TRY(fill_time(s, op->fill.rows * op->fill.n * op->fill.width));
        for (size_t row = 0; row < op->fill.rows; row++)
            fill_row(op->fill.to + row * op->fill.pitch, op->fill.value, op->fill.width, op->fill.n);
        return CUDA_SUCCESS;
    case NODE_HOST:
        TRY(sim_stream_wait(s));
        op->host.function(op->host.data);
        return CUDA_SUCCESS;
    case NODE_RECORD: return event_record(op->event, s);
    case NODE_WAIT: return event_wait(s, op->event);
    default: return CUDA_SUCCESS;
    }
}

static CUresult launch(struct exec *e, CUstream handle) {
    struct stream *s;
    struct piece piece;
    uint64_t peak, lasting;
    TRY(exec_valid(e));
    TRY(sim_stream(handle, &s));
    CUresult r;
    if (capture_refuses(s, &r))
        return r;
    for (size_t i = 0; i < e->count; i++) /* memory of an earlier launch must have been freed */
        if (e->ops[i].type == NODE_ALLOC && heap_find(e->ops[i].memory.address, &piece)) {
            if (!(e->flags & AUTO_FREE_ON_LAUNCH))
                return CUDA_ERROR_INVALID_VALUE;
            heap_free(piece.address);
        }
    for (int dev = 0; dev < sim_gpus; dev++) {
        footprint(e, dev, &peak, &lasting);
        if (peak)
            TRY(memory_grow(dev, peak, lasting));
    }
    for (size_t i = 0; i < e->count; i++) {
        const struct op *op = &e->ops[i];
        if (op->type == NODE_KERNEL && !op->kernel.spin) {
            struct kernel all = {.width = op->kernel.width, .duration_ns = kernel_ns(&op->kernel)};
            for (; i + 1 < e->count && e->ops[i + 1].type == NODE_KERNEL && !e->ops[i + 1].kernel.spin; i++) {
                all.duration_ns += kernel_ns(&e->ops[i + 1].kernel);
                if (e->ops[i + 1].kernel.width > all.width)
                    all.width = e->ops[i + 1].kernel.width;
            }
            TRY(kernel_submit(s, &all)); /* kernels that follow each other are one command for the GPU */
        } else if (op->type == NODE_ALLOC && !freed_inside(e, i))
            TRY(heap_note((struct piece){op->memory.address, op->memory.size, 0, s->ctx, GRAPH, NULL, 0}));
        else if (op->type == NODE_FREE && heap_find(op->memory.address, &piece))
            TRY(heap_free(op->memory.address)); /* memory of an earlier launch, or not of a graph */
        else
            TRY(run(op, s));
    }
    return CUDA_SUCCESS;
}

API CUresult cuGraphLaunch(struct exec *e, CUstream s) { return launch(e, s); }
API CUresult cuGraphLaunch_ptsz(struct exec *e, CUstream s) { return launch(e, PER_THREAD(s)); }
