/* Simulated libcuda: what nodes do: from the structures of the API, and nodes made of it. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

CUresult op_kernel(struct op *out, const struct kernel_params *p) {
    CUcontext ctx;
    TRY(sim_context(&ctx));
    if (!p || !p->function || !p->grid[0] || !p->grid[1] || !p->grid[2] || !p->block[0] || !p->block[1] || !p->block[2])
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct op){.type = NODE_KERNEL, .said = *p};
    out->said.params = NULL; /* the program's memory; the real driver copies the parameters */
    uint64_t blocks = (uint64_t)p->grid[0] * p->grid[1] * p->grid[2];
    return kernel_of(p->function, ctx->device, blocks, p->params, &out->kernel);
}

CUresult op_copy(struct op *out, const struct copy3d *copy) {
    TRY(sim_ready());
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct op){.type = NODE_COPY, .box = *copy};
    return CUDA_SUCCESS;
}

CUresult op_fill(struct op *out, const struct fill_params *p) {
    TRY(sim_ready());
    if (!p || !p->to || (p->width != 1 && p->width != 2 && p->width != 4))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct op){.type = NODE_FILL, .fill = {p->to, p->pitch, p->width, p->n, p->rows, p->value}};
    return CUDA_SUCCESS;
}

CUresult op_host(struct op *out, const struct host_params *p) {
    TRY(sim_ready());
    if (!p || !p->function)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct op){.type = NODE_HOST, .host = *p};
    return CUDA_SUCCESS;
}

CUresult op_event(struct op *out, enum node_type type, CUevent event) {
    TRY(sim_ready());
    if (!event)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct op){.type = type, .event = event};
    return CUDA_SUCCESS;
}

CUresult op_child(struct op *out, const struct graph *child) {
    TRY(graph_valid(child));
    *out = (struct op){.type = NODE_GRAPH};
    return graph_copy(&out->child, child);
}

CUresult op_memops(struct op *out, const struct memop_params *p) {
    TRY(sim_ready());
    if (!p || !p->count || p->count > 256 || !p->list || p->flags)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct op){.type = NODE_MEMOP};
    out->memop.n = p->count;
    out->memop.list = malloc(p->count * sizeof *out->memop.list);
    out->memop.said = malloc(p->count * MEMOP_BYTES);
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    if (out->memop.list && out->memop.said) {
        memcpy(out->memop.said, p->list, p->count * MEMOP_BYTES);
        r = memops_of(p->list, p->count, out->memop.list);
    }
    if (r)
        op_free(out);
    return r;
}

CUresult graph_address(struct op *op, size_t bytes, int device) {
    TRY(sim_device(device));
    uint64_t size = round_up(bytes, GRAIN), at = bytes ? heap_map(round_up(size, 4096)) : 0;
    if (!at)
        return bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    *op = (struct op){.type = NODE_ALLOC, .memory = {at, size, device}};
    return CUDA_SUCCESS;
}

/* --- nodes made of it --- */

/* Adds a node with that operation, or releases what the operation holds. */
static CUresult add(CUresult made, struct node **out, struct graph *g, nodes before, size_t n, struct op *op) {
    CUresult r = made ? made : graph_add(g, before, n, op, out);
    if (r && !made)
        op_free(op);
    return r;
}

API CUresult cuGraphAddKernelNode(struct node **out, struct graph *g, nodes b, size_t n,
                                  const struct kernel_params *p) {
    struct op op;
    return add(op_kernel(&op, p), out, g, b, n, &op);
}

API CUresult cuGraphAddKernelNode_v2(struct node **out, struct graph *g, nodes b, size_t n,
                                     const struct kernel_params *p) {
    struct op op;
    return add(op_kernel(&op, p), out, g, b, n, &op);
}

API CUresult cuGraphAddEmptyNode(struct node **out, struct graph *g, nodes before, size_t n) {
    struct op op = {.type = NODE_EMPTY};
    return graph_add(g, before, n, &op, out);
}

API CUresult cuGraphAddMemcpyNode(struct node **out, struct graph *g, nodes before, size_t n, const struct copy3d *copy,
                                  CUcontext ctx) {
    struct op op;
    (void)ctx;
    return add(op_copy(&op, copy), out, g, before, n, &op);
}

API CUresult cuGraphAddMemsetNode(struct node **out, struct graph *g, nodes before, size_t n,
                                  const struct fill_params *p, CUcontext ctx) {
    struct op op;
    (void)ctx;
    return add(op_fill(&op, p), out, g, before, n, &op);
}

API CUresult cuGraphAddHostNode(struct node **out, struct graph *g, nodes before, size_t n,
                                const struct host_params *p) {
    struct op op;
    return add(op_host(&op, p), out, g, before, n, &op);
}

API CUresult cuGraphAddChildGraphNode(struct node **out, struct graph *g, nodes before, size_t n, struct graph *child) {
    struct op op;
    return add(op_child(&op, child), out, g, before, n, &op);
}

API CUresult cuGraphAddEventRecordNode(struct node **out, struct graph *g, nodes before, size_t n, CUevent event) {
    struct op op;
    return add(op_event(&op, NODE_RECORD, event), out, g, before, n, &op);
}

API CUresult cuGraphAddEventWaitNode(struct node **out, struct graph *g, nodes before, size_t n, CUevent event) {
    struct op op;
    return add(op_event(&op, NODE_WAIT, event), out, g, before, n, &op);
}

API CUresult cuGraphAddMemAllocNode(struct node **out, struct graph *g, nodes before, size_t n,
                                    struct alloc_params *p) {
    struct op op;
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    TRY(graph_valid(g));
    TRY(graph_address(&op, p->bytes, p->location_id));
    TRY(graph_add(g, before, n, &op, out));
    p->address = op.memory.address;
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddMemFreeNode(struct node **out, struct graph *g, nodes before, size_t n, CUdeviceptr address) {
    struct op op = {.type = NODE_FREE, .memory = {address, 0, 0}};
    return address ? graph_add(g, before, n, &op, out) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphAddBatchMemOpNode(struct node **out, struct graph *g, nodes before, size_t n,
                                      const struct memop_params *p) {
    struct op op;
    return add(op_memops(&op, p), out, g, before, n, &op);
}

CUresult op_any(struct op *out, const struct node_params *p) {
    TRY(sim_ready());
    switch (p->type) {
    case NODE_KERNEL: return op_kernel(out, &p->kernel);
    case NODE_COPY: return op_copy(out, &p->copy.box);
    case NODE_FILL: return op_fill(out, &p->fill);
    case NODE_HOST: return op_host(out, &p->host);
    case NODE_GRAPH: return op_child(out, p->child);
    case NODE_EMPTY: *out = (struct op){.type = NODE_EMPTY}; return CUDA_SUCCESS;
    case NODE_WAIT:
    case NODE_RECORD: return op_event(out, (enum node_type)p->type, p->event);
    case NODE_MEMOP: return op_memops(out, &p->memop);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult add_any(struct node **out, struct graph *g, nodes before, size_t n, struct node_params *p) {
    struct op op;
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->type == NODE_ALLOC)
        return cuGraphAddMemAllocNode(out, g, before, n, &p->alloc);
    if (p->type == NODE_FREE)
        return cuGraphAddMemFreeNode(out, g, before, n, p->free);
    return add(op_any(&op, p), out, g, before, n, &op);
}

API CUresult cuGraphAddNode(struct node **out, struct graph *g, nodes before, size_t n, struct node_params *p) {
    return add_any(out, g, before, n, p);
}

API CUresult cuGraphAddNode_v2(struct node **out, struct graph *g, nodes before, const void *edges, size_t n,
                               struct node_params *p) {
    return (void)edges, add_any(out, g, before, n, p);
}
