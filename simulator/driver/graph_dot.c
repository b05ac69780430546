/* Simulated libcuda: a graph as text for graphviz. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdio.h>

static const char *type_name(enum node_type type) {
    switch (type) {
    case NODE_KERNEL: return "KERNEL";
    case NODE_COPY: return "MEMCPY";
    case NODE_FILL: return "MEMSET";
    case NODE_HOST: return "HOST";
    case NODE_GRAPH: return "GRAPH";
    case NODE_EMPTY: return "EMPTY";
    case NODE_WAIT: return "WAIT_EVENT";
    case NODE_RECORD: return "EVENT_RECORD";
    case NODE_ALLOC: return "MEM_ALLOC";
    case NODE_FREE: return "MEM_FREE";
    case NODE_MEMOP: return "BATCH_MEM_OP";
    }
    return "UNKNOWN";
}

static size_t number_of(const struct graph *g, const struct node *node) {
    size_t i = 0;
    for (const struct node *n = g->first; n && n != node; n = n->next)
        i++;
    return i;
}

API CUresult cuGraphDebugDotPrint(struct graph *g, const char *path, unsigned flags) {
    (void)flags;
    TRY(graph_valid(g));
    FILE *f = path ? fopen(path, "we") : NULL;
    if (!f)
        return path ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE;
    fprintf(f, "digraph dot {\n");
    size_t i = 0;
    for (const struct node *n = g->first; n; n = n->next, i++) {
        fprintf(f, "\"node_%zu\" [label=\"%s\"];\n", i, type_name(n->op.type));
        for (size_t k = 0; k < n->n_before; k++)
            fprintf(f, "\"node_%zu\" -> \"node_%zu\";\n", number_of(g, n->before[k]), i);
    }
    fprintf(f, "}\n");
    return fclose(f) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
