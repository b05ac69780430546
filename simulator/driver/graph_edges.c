/* Simulated libcuda: the edges of graphs, and walks along them. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#define EDGE_BYTES 8 /* CUgraphEdgeData */

static CUresult add_dependencies(struct graph *g, nodes from, nodes to, size_t n) {
    TRY(graph_valid(g));
    if (n && (!from || !to))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++) {
        if (!from[i] || !to[i] || from[i]->graph != g || to[i]->graph != g)
            return CUDA_ERROR_INVALID_VALUE;
        struct node **more = realloc(to[i]->before, (to[i]->n_before + 1) * sizeof *more);
        if (!more)
            return CUDA_ERROR_OUT_OF_MEMORY;
        more[to[i]->n_before++] = from[i];
        to[i]->before = more;
    }
    return CUDA_SUCCESS;
}

static bool remove_dependency(struct node *from, struct node *to) {
    for (size_t i = 0; i < to->n_before; i++)
        if (to->before[i] == from) {
            to->before[i] = to->before[--to->n_before];
            return true;
        }
    return false;
}

static CUresult remove_dependencies(struct graph *g, nodes from, nodes to, size_t n) {
    TRY(graph_valid(g));
    if (n && (!from || !to))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < n; i++)
        if (!from[i] || !to[i] || from[i]->graph != g || to[i]->graph != g || !remove_dependency(from[i], to[i]))
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

API CUresult cuGraphDestroyNode(struct node *node) {
    TRY(sim_ready());
    struct graph *g = node ? node->graph : NULL;
    /* a graph with memory nodes keeps all its nodes, by the driver's documentation */
    if (!g || node->op.type == NODE_ALLOC || node->op.type == NODE_FREE)
        return g ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    struct node **p = &g->first;
    g->last = NULL;
    while (*p) {
        if (*p == node)
            *p = node->next;
        else {
            while (remove_dependency(node, *p))
                ;
            g->last = *p;
            p = &(*p)->next;
        }
    }
    g->count--;
    node_free(node);
    return CUDA_SUCCESS;
}

/* A list for a program: it asks with out = NULL how many there are; places beyond the last one become NULL. */
struct listed {
    struct node **out;
    size_t room, found;
};

static void list(struct listed *l, struct node *node) {
    if (l->out && l->found < l->room)
        l->out[l->found] = node;
    l->found++;
}

static CUresult listed(const struct listed *l, size_t *n) {
    for (size_t i = l->found; l->out && i < l->room; i++)
        l->out[i] = NULL;
    *n = l->out && l->found > l->room ? l->room : l->found;
    return CUDA_SUCCESS;
}

API CUresult cuGraphGetNodes(struct graph *g, struct node **out, size_t *n) {
    TRY(graph_valid(g));
    if (!n)
        return CUDA_ERROR_INVALID_VALUE;
    struct listed l = {out, *n, 0};
    for (struct node *node = g->first; node; node = node->next)
        list(&l, node);
    return listed(&l, n);
}

API CUresult cuGraphGetRootNodes(struct graph *g, struct node **out, size_t *n) {
    TRY(graph_valid(g));
    if (!n)
        return CUDA_ERROR_INVALID_VALUE;
    struct listed l = {out, *n, 0};
    for (struct node *node = g->first; node; node = node->next)
        if (!node->n_before)
            list(&l, node);
    return listed(&l, n);
}

static CUresult edges(struct graph *g, struct node **from, struct node **to, void *data, size_t *n) {
    TRY(graph_valid(g));
    if (!n || !from != !to || (data && !from))
        return CUDA_ERROR_INVALID_VALUE;
    struct listed a = {from, *n, 0}, b = {to, *n, 0};
    if (data)
        memset(data, 0, *n * EDGE_BYTES);
    for (struct node *node = g->first; node; node = node->next)
        for (size_t i = 0; i < node->n_before; i++) {
            list(&a, node->before[i]);
            list(&b, node);
        }
    listed(&a, n);
    *n = from ? a.room : *n;
    return listed(&b, n);
}

static CUresult dependencies(struct node *node, struct node **out, void *data, size_t *n) {
    TRY(sim_ready());
    if (!node || !n || (data && !out))
        return CUDA_ERROR_INVALID_VALUE;
    struct listed l = {out, *n, 0};
    if (data)
        memset(data, 0, *n * EDGE_BYTES);
    for (size_t i = 0; i < node->n_before; i++)
        list(&l, node->before[i]);
    return listed(&l, n);
}

static CUresult dependents(struct node *node, struct node **out, void *data, size_t *n) {
    TRY(sim_ready());
    if (!node || !n || (data && !out))
        return CUDA_ERROR_INVALID_VALUE;
    struct listed l = {out, *n, 0};
    if (data)
        memset(data, 0, *n * EDGE_BYTES);
    for (struct node *other = node->graph->first; other; other = other->next)
        for (size_t i = 0; i < other->n_before; i++)
            if (other->before[i] == node)
                list(&l, other);
    return listed(&l, n);
}

API CUresult cuGraphNodeFindInClone(struct node **out, struct node *original, struct graph *clone) {
    TRY(graph_valid(clone));
    struct node *n = original ? clone->first : NULL;
    while (n && n->original != original)
        n = n->next;
    if (!out || !n)
        return CUDA_ERROR_INVALID_VALUE;
    *out = n;
    return CUDA_SUCCESS;
}

/* With and without the data of edges (CUgraphEdgeData), which is 0 for the ordinary ones; there are no others here. */
API CUresult cuGraphAddDependencies(struct graph *g, nodes from, nodes to, size_t n) {
    return add_dependencies(g, from, to, n);
}
API CUresult cuGraphAddDependencies_v2(struct graph *g, nodes from, nodes to, const void *data, size_t n) {
    return (void)data, add_dependencies(g, from, to, n);
}
API CUresult cuGraphRemoveDependencies(struct graph *g, nodes from, nodes to, size_t n) {
    return remove_dependencies(g, from, to, n);
}
API CUresult cuGraphRemoveDependencies_v2(struct graph *g, nodes from, nodes to, const void *data, size_t n) {
    return (void)data, remove_dependencies(g, from, to, n);
}
API CUresult cuGraphGetEdges(struct graph *g, struct node **from, struct node **to, size_t *n) {
    return edges(g, from, to, NULL, n);
}
API CUresult cuGraphGetEdges_v2(struct graph *g, struct node **from, struct node **to, void *data, size_t *n) {
    return edges(g, from, to, data, n);
}
API CUresult cuGraphNodeGetDependencies(struct node *node, struct node **out, size_t *n) {
    return dependencies(node, out, NULL, n);
}
API CUresult cuGraphNodeGetDependencies_v2(struct node *node, struct node **out, void *data, size_t *n) {
    return dependencies(node, out, data, n);
}
API CUresult cuGraphNodeGetDependentNodes(struct node *node, struct node **out, size_t *n) {
    return dependents(node, out, NULL, n);
}
API CUresult cuGraphNodeGetDependentNodes_v2(struct node *node, struct node **out, void *data, size_t *n) {
    return dependents(node, out, data, n);
}
