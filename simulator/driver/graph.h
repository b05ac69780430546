/* Graphs: their nodes run in the order of a topological sort. capture.c makes nodes of a captured stream's work. */
#ifndef GPU_HOOK_SIM_GRAPH_H
#define GPU_HOOK_SIM_GRAPH_H

#include "heap.h"

enum node_type { /* CU_GRAPH_NODE_TYPE_... */
                 NODE_KERNEL = 0,
                 NODE_COPY = 1,
                 NODE_FILL = 2,
                 NODE_HOST = 3,
                 NODE_GRAPH = 4,
                 NODE_EMPTY = 5,
                 NODE_WAIT = 6,
                 NODE_RECORD = 7,
                 NODE_ALLOC = 10,
                 NODE_FREE = 11,
                 NODE_MEMOP = 12,
};

struct op { /* what one node does */
    enum node_type type;
    const struct node *from; /* the graph's node, in an executable graph */
    bool flat;               /* COPY: linear memory; else a box */
    union {
        struct kernel kernel;
        struct {
            struct memop one, *list;
            unsigned n;
        } memop; /* list: n operations of a graph's node; one: a captured operation, or one to run */
        struct {
            uint64_t to, from, bytes;
        } copy;
        struct copy3d box;
        struct fill fill;
        struct {
            void (*function)(void *);
            void *data;
        } host;
        struct {
            uint64_t address, size;
            int device;
        } memory; /* ALLOC, FREE */
        CUevent event;
        struct graph *child;
    };
};

struct node {
    struct graph *graph;
    struct op op;
    struct node **before; /* the nodes that it depends on */
    size_t n_before;
    struct node *next;
};

struct graph {
    uint64_t magic;
    struct node *first, *last;
    size_t count;
};

CUresult graph_new(struct graph **out);
void graph_destroy(struct graph *graph);
CUresult graph_add(struct graph *graph, struct node *const *before, size_t n, const struct op *op, struct node **out);
/* The address for an allocation node: host memory that does not yet count on the GPU. */
CUresult graph_address(struct op *op, size_t bytes, int device);

#endif
