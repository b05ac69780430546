/* Simulated libcuda: parameters of nodes, in graphs and in executable graphs. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

static CUresult node_of(const struct node *node, enum node_type type, const void *out) {
    TRY(sim_ready());
    return node && out && node->op.type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- what they are --- */

API CUresult cuGraphNodeGetType(struct node *node, int *type) {
    TRY(sim_ready());
    if (!node || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = (int)node->op.type;
    return CUDA_SUCCESS;
}

/* Version 1 of the structure ends before `kernel` and `ctx`. Parameters of the kernel are not kept. */
API CUresult cuGraphKernelNodeGetParams(struct node *node, struct kernel_params *out) {
    TRY(node_of(node, NODE_KERNEL, out));
    memcpy(out, &node->op.said, offsetof(struct kernel_params, kernel));
    return CUDA_SUCCESS;
}

API CUresult cuGraphKernelNodeGetParams_v2(struct node *node, struct kernel_params *out) {
    TRY(node_of(node, NODE_KERNEL, out));
    *out = node->op.said;
    out->kernel = NULL;
    out->ctx = NULL;
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemcpyNodeGetParams(struct node *node, struct copy3d *out) {
    TRY(node_of(node, NODE_COPY, out));
    if (!node->op.flat) {
        *out = node->op.box;
        return CUDA_SUCCESS;
    }
    enum { UNIFIED = 4 }; /* CU_MEMORYTYPE_UNIFIED */
    *out = (struct copy3d){.from = {.type = UNIFIED, .device = node->op.copy.from},
                           .to = {.type = UNIFIED, .device = node->op.copy.to},
                           .width = node->op.copy.bytes,
                           .height = 1,
                           .depth = 1};
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemsetNodeGetParams(struct node *node, struct fill_params *out) {
    TRY(node_of(node, NODE_FILL, out));
    const struct fill *f = &node->op.fill;
    *out = (struct fill_params){f->to, f->pitch, f->value, (unsigned)f->width, f->n, f->rows};
    return CUDA_SUCCESS;
}

API CUresult cuGraphHostNodeGetParams(struct node *node, struct host_params *out) {
    TRY(node_of(node, NODE_HOST, out));
    *out = node->op.host;
    return CUDA_SUCCESS;
}

API CUresult cuGraphChildGraphNodeGetGraph(struct node *node, struct graph **out) {
    TRY(node_of(node, NODE_GRAPH, out));
    *out = node->op.child;
    return CUDA_SUCCESS;
}

API CUresult cuGraphEventRecordNodeGetEvent(struct node *node, CUevent *out) {
    TRY(node_of(node, NODE_RECORD, out));
    *out = node->op.event;
    return CUDA_SUCCESS;
}

API CUresult cuGraphEventWaitNodeGetEvent(struct node *node, CUevent *out) {
    TRY(node_of(node, NODE_WAIT, out));
    *out = node->op.event;
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemAllocNodeGetParams(struct node *node, struct alloc_params *out) {
    TRY(node_of(node, NODE_ALLOC, out));
    *out = (struct alloc_params){.alloc_type = 1,
                                 .location_type = 1,
                                 .location_id = node->op.memory.device,
                                 .bytes = node->op.memory.size,
                                 .address = node->op.memory.address};
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemFreeNodeGetParams(struct node *node, CUdeviceptr *out) {
    TRY(node_of(node, NODE_FREE, out));
    *out = node->op.memory.address;
    return CUDA_SUCCESS;
}

/* The list is the node's. A captured operation has none. */
API CUresult cuGraphBatchMemOpNodeGetParams(struct node *node, struct memop_params *out) {
    TRY(node_of(node, NODE_MEMOP, out));
    *out = (struct memop_params){.count = node->op.memop.said ? node->op.memop.n : 0, .list = node->op.memop.said};
    return CUDA_SUCCESS;
}

/* --- setting them: in a graph for later instantiations, in an executable graph for later launches --- */

static CUresult set(CUresult made, struct node *node, struct op *op) {
    if (made)
        return made;
    if (!node || node->op.type != op->type) {
        op_free(op);
        return CUDA_ERROR_INVALID_VALUE;
    }
    op_free(&node->op);
    node->op = *op;
    return CUDA_SUCCESS;
}

/* The node's operations in an executable graph: one, or those of a batch, which stay as many. */
static CUresult exec_set(CUresult made, struct exec *e, const struct node *node, struct op *op) {
    if (made)
        return made;
    CUresult r = exec_valid(e);
    unsigned n = op->type == NODE_MEMOP ? op->memop.n : 1, at = 0;
    for (size_t i = 0; !r && i < e->count; i++) {
        if (e->ops[i].from != node || e->ops[i].type != op->type || at == n)
            continue;
        bool off = e->ops[i].off;
        if (op->type == NODE_MEMOP)
            e->ops[i].memop.one = op->memop.list[at];
        else
            e->ops[i] = *op;
        e->ops[i].from = node;
        e->ops[i].off = off;
        at++;
    }
    if (op->type == NODE_MEMOP)
        op_free(op);
    return r ? r : at == n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

#define SETTERS(api, exec_api, params, make)                                 \
    API CUresult api(struct node *node, const params *p) {                   \
        struct op op;                                                        \
        return set(make(&op, p), node, &op);                                 \
    }                                                                        \
    API CUresult exec_api(struct exec *e, struct node *n, const params *p) { \
        struct op op;                                                        \
        return exec_set(make(&op, p), e, n, &op);                            \
    }
SETTERS(cuGraphKernelNodeSetParams, cuGraphExecKernelNodeSetParams, struct kernel_params, op_kernel)
SETTERS(cuGraphKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams_v2, struct kernel_params, op_kernel)
SETTERS(cuGraphHostNodeSetParams, cuGraphExecHostNodeSetParams, struct host_params, op_host)
SETTERS(cuGraphBatchMemOpNodeSetParams, cuGraphExecBatchMemOpNodeSetParams, struct memop_params, op_memops)

API CUresult cuGraphMemcpyNodeSetParams(struct node *node, const struct copy3d *p) {
    struct op op;
    return set(op_copy(&op, p), node, &op);
}

API CUresult cuGraphExecMemcpyNodeSetParams(struct exec *e, struct node *n, const struct copy3d *p, CUcontext ctx) {
    struct op op;
    (void)ctx;
    return exec_set(op_copy(&op, p), e, n, &op);
}

API CUresult cuGraphMemsetNodeSetParams(struct node *node, const struct fill_params *p) {
    struct op op;
    return set(op_fill(&op, p), node, &op);
}

API CUresult cuGraphExecMemsetNodeSetParams(struct exec *e, struct node *n, const struct fill_params *p, CUcontext c) {
    struct op op;
    (void)c;
    return exec_set(op_fill(&op, p), e, n, &op);
}

#define EVENT_SETTERS(api, exec_api, type)                                 \
    API CUresult api(struct node *node, CUevent event) {                   \
        struct op op;                                                      \
        return set(op_event(&op, type, event), node, &op);                 \
    }                                                                      \
    API CUresult exec_api(struct exec *e, struct node *n, CUevent event) { \
        struct op op;                                                      \
        return exec_set(op_event(&op, type, event), e, n, &op);            \
    }
EVENT_SETTERS(cuGraphEventRecordNodeSetEvent, cuGraphExecEventRecordNodeSetEvent, NODE_RECORD)
EVENT_SETTERS(cuGraphEventWaitNodeSetEvent, cuGraphExecEventWaitNodeSetEvent, NODE_WAIT)

/* The nodes of a child graph, which must be of the same kinds in the same order. */
API CUresult cuGraphExecChildGraphNodeSetParams(struct exec *e, struct node *node, struct graph *child) {
    TRY(exec_valid(e));
    TRY(graph_valid(child));
    TRY(node_of(node, NODE_GRAPH, e));
    struct node *old = node->op.child->first, *new = child->first;
    for (; old && new; old = old->next, new = new->next)
        if (old->op.type != new->op.type || old->op.type == NODE_GRAPH || old->op.type == NODE_MEMOP)
            return CUDA_ERROR_INVALID_VALUE;
    if (old || new)
        return CUDA_ERROR_INVALID_VALUE;
    for (old = node->op.child->first, new = child->first; old; old = old->next, new = new->next) {
        struct op op = new->op;
        TRY(exec_set(CUDA_SUCCESS, e, old, &op));
    }
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeSetParams(struct node *node, const struct node_params *p) {
    struct op op;
    return p ? set(op_any(&op, p), node, &op) : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphExecNodeSetParams(struct exec *e, struct node *node, const struct node_params *p) {
    struct op op;
    TRY(exec_valid(e));
    if (p && p->type == NODE_GRAPH)
        return cuGraphExecChildGraphNodeSetParams(e, node, p->child);
    return p ? exec_set(op_any(&op, p), e, node, &op) : CUDA_ERROR_INVALID_VALUE;
}

/* --- nodes of an executable graph that are left out; only kernels, fills and copies can be --- */

static struct op *switchable(const struct exec *e, const struct node *node) {
    for (size_t i = 0; i < e->count; i++)
        if (node && e->ops[i].from == node && e->ops[i].type <= NODE_FILL)
            return &e->ops[i];
    return NULL;
}

API CUresult cuGraphNodeGetEnabled(struct exec *e, struct node *node, unsigned *out) {
    TRY(exec_valid(e));
    const struct op *op = switchable(e, node);
    if (!out || !op)
        return CUDA_ERROR_INVALID_VALUE;
    *out = !op->off;
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeSetEnabled(struct exec *e, struct node *node, unsigned on) {
    TRY(exec_valid(e));
    struct op *op = switchable(e, node);
    if (!op)
        return CUDA_ERROR_INVALID_VALUE;
    op->off = !on;
    return CUDA_SUCCESS;
}

/* --- attributes of kernel nodes --- */

API CUresult cuGraphKernelNodeGetAttribute(struct node *node, int id, void *out) {
    TRY(node_of(node, NODE_KERNEL, out));
    return attribute_get(node->attributes, id, out);
}

API CUresult cuGraphKernelNodeSetAttribute(struct node *node, int id, const void *value) {
    TRY(node_of(node, NODE_KERNEL, value));
    return attribute_set(&node->attributes, id, value);
}

API CUresult cuGraphKernelNodeCopyAttributes(struct node *to, struct node *from) {
    TRY(node_of(to, NODE_KERNEL, to));
    TRY(node_of(from, NODE_KERNEL, from));
    attributes_free(to->attributes);
    to->attributes = attributes_copy(from->attributes);
    return CUDA_SUCCESS;
}
