/* Simulated libcuda: executable graphs, and their launches. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#define EXEC_MAGIC 0x657865632d73696dull
enum { AUTO_FREE_ON_LAUNCH = 1, UPLOAD = 2 }; /* CUDA_GRAPH_INSTANTIATE_FLAG_... */

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

CUresult exec_valid(const struct exec *e) {
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
            TRY(graph_memory_grow(dev, peak, 0));
    }
    return CUDA_SUCCESS;
}

static CUresult instantiate(struct exec **out, struct graph *g, unsigned long long flags, CUstream stream) {
    TRY(graph_valid(g));
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
    if (!r)
        r = user_objects_copy(&e->objects, g->objects);
    if (r) {
        if (e) {
            user_objects_release(&e->objects);
            free(e->ops);
        }
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
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = e->flags;
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecDestroy(struct exec *e) {
    TRY(exec_valid(e));
    e->magic = 0;
    user_objects_release(&e->objects);
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
    TRY(graph_valid(g));
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
    TRY(graph_valid(g));
    if (!info)
        return CUDA_ERROR_INVALID_VALUE;
    *info = (struct update_info){update(e, g), NULL, NULL};
    return info->result ? CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE : CUDA_SUCCESS;
}

API CUresult cuGraphUpload(struct exec *e, CUstream s) { return upload(e, s); }
API CUresult cuGraphUpload_ptsz(struct exec *e, CUstream s) { return upload(e, PER_THREAD(s)); }

static CUresult run(const struct op *op, struct stream *s) {
    if (op->off)
        return CUDA_SUCCESS;
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
        sim_run_host_function(op->host.function, op->host.data);
        return CUDA_SUCCESS;
    case NODE_RECORD: return event_record(op->event, s);
    case NODE_WAIT: return event_wait(s, op->event);
    default: return CUDA_SUCCESS;
    }
}

static bool plain_kernel(const struct op *op) { return op->type == NODE_KERNEL && !op->kernel.spin && !op->off; }

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
            TRY(graph_memory_grow(dev, peak, lasting));
    }
    for (size_t i = 0; i < e->count; i++) {
        const struct op *op = &e->ops[i];
        if (plain_kernel(op)) {
            struct kernel all = {.width = op->kernel.width, .duration_ns = kernel_ns(&op->kernel)};
            for (; i + 1 < e->count && plain_kernel(&e->ops[i + 1]); i++) {
                all.duration_ns += kernel_ns(&e->ops[i + 1].kernel);
                if (e->ops[i + 1].kernel.width > all.width)
                    all.width = e->ops[i + 1].kernel.width;
            }
            TRY(kernel_submit(s, &all)); /* kernels that follow each other are one command for the GPU */
        } else if (op->type == NODE_ALLOC && !freed_inside(e, i))
            TRY(heap_note(
                (struct piece){.address = op->memory.address, .size = op->memory.size, .ctx = s->ctx, .kind = GRAPH}));
        else if (op->type == NODE_FREE && heap_find(op->memory.address, &piece))
            TRY(heap_free(op->memory.address)); /* memory of an earlier launch, or not of a graph */
        else
            TRY(run(op, s));
    }
    return CUDA_SUCCESS;
}

API CUresult cuGraphLaunch(struct exec *e, CUstream s) { return launch(e, s); }
API CUresult cuGraphLaunch_ptsz(struct exec *e, CUstream s) { return launch(e, PER_THREAD(s)); }
