/* Simulated libcuda: building graphs. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#define GRAPH_MAGIC 0x67726170682d7369ull

CUresult graph_new(struct graph **out) {
    TRY(sim_ready());
    struct graph *g = out ? calloc(1, sizeof *g) : NULL;
    if (!g)
        return out ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    g->magic = GRAPH_MAGIC;
    *out = g;
    return CUDA_SUCCESS;
}

void op_free(struct op *op) {
    if (op->type == NODE_GRAPH)
        graph_destroy(op->child);
    if (op->type == NODE_MEMOP) {
        free(op->memop.list);
        free(op->memop.said);
    }
}

void node_free(struct node *n) {
    op_free(&n->op);
    attributes_free(n->attributes);
    free(n->before);
    free(n);
}

void graph_destroy(struct graph *g) {
    while (g->first) {
        struct node *n = g->first;
        g->first = n->next;
        node_free(n);
    }
    user_objects_release(&g->objects);
    g->magic = 0;
    free(g);
}

CUresult graph_valid(const struct graph *g) {
    TRY(sim_ready());
    return g && g->magic == GRAPH_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult graph_add(struct graph *g, struct node *const *before, size_t n, const struct op *op, struct node **out) {
    TRY(graph_valid(g));
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
    void *said = op->memop.said ? malloc(op->memop.n * MEMOP_BYTES) : NULL;
    if (op->memop.said && !said) {
        free(list);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (list)
        memcpy(list, op->memop.list, op->memop.n * sizeof *list);
    if (said)
        memcpy(said, op->memop.said, op->memop.n * MEMOP_BYTES);
    op->memop.list = list;
    op->memop.said = said;
    return CUDA_SUCCESS;
}

CUresult graph_copy(struct graph **out, const struct graph *g) {
    struct graph *copy;
    TRY(graph_new(&copy));
    struct node **new = calloc(g->count + 1, sizeof *new), **map = calloc(g->count + 1, sizeof *map);
    size_t i = 0;
    CUresult r = new && map ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (struct node *n = g->first; n && !r; n = n->next, i++) {
        struct op op = n->op;
        if (op.type == NODE_GRAPH && (r = graph_copy(&op.child, n->op.child)))
            break;
        if (op.type == NODE_MEMOP && (r = copy_memops(&op)))
            break;
        map[i] = n;
        if ((r = graph_add(copy, NULL, 0, &op, &new[i])))
            break;
        new[i]->before = n->n_before ? calloc(n->n_before, sizeof *n->before) : NULL;
        new[i]->n_before = n->n_before;
        new[i]->original = n;
        new[i]->attributes = attributes_copy(n->attributes);
    }
    if (!r)
        r = user_objects_copy(&copy->objects, g->objects);
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
    TRY(graph_valid(g));
    graph_destroy(g);
    return CUDA_SUCCESS;
}

API CUresult cuGraphClone(struct graph **out, struct graph *g) {
    TRY(graph_valid(g));
    for (struct node *n = g->first; n; n = n->next)
        if (n->op.type == NODE_ALLOC || n->op.type == NODE_FREE)
            return CUDA_ERROR_NOT_SUPPORTED;
    return out ? graph_copy(out, g) : CUDA_ERROR_INVALID_VALUE;
}
