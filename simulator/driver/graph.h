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

/* --- structures of the API --- */

struct fill_params { /* CUDA_MEMSET_NODE_PARAMS */
    CUdeviceptr to;
    size_t pitch;
    unsigned value, width;
    size_t n, rows;
};

struct host_params { /* CUDA_HOST_NODE_PARAMS */
    void (*function)(void *);
    void *data;
};

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

#define MEMOP_BYTES 48 /* CUstreamBatchMemOpParams */
struct memop_params {  /* CUDA_BATCH_MEM_OP_NODE_PARAMS */
    CUcontext ctx;
    unsigned count;
    const void *list;
    unsigned flags;
};

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

_Static_assert(sizeof(struct node_params) == 256, "CUgraphNodeParams");

/* --- nodes --- */

struct op { /* what one node does */
    enum node_type type;
    const struct node *from;   /* the graph's node, in an executable graph */
    bool flat;                 /* COPY: linear memory; else a box */
    bool off;                  /* in an executable graph: left out */
    struct kernel_params said; /* KERNEL: without the kernel's parameters */
    union {
        struct kernel kernel;
        struct {
            struct memop one, *list;
            void *said; /* as the program gave them; NULL: captured */
            unsigned n;
        } memop; /* list: n operations of a graph's node; one: a captured operation, or one to run */
        struct {
            uint64_t to, from, bytes;
        } copy;
        struct copy3d box;
        struct fill fill;
        struct host_params host;
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
    const struct node *original; /* of which it was cloned; only compared */
    struct attributes *attributes;
    struct node *next;
};

struct held_object;
struct graph {
    uint64_t magic;
    struct node *first, *last;
    size_t count;
    struct held_object *objects; /* user objects */
};
typedef struct node *const *nodes;

CUresult graph_new(struct graph **out);
void graph_destroy(struct graph *graph);
CUresult graph_valid(const struct graph *graph);
CUresult graph_copy(struct graph **out, const struct graph *graph);
CUresult graph_add(struct graph *graph, struct node *const *before, size_t n, const struct op *op, struct node **out);
void node_free(struct node *node); /* which no graph has any more */

/* graph_op.c: an operation of a structure of the API; op_free releases what it holds. */
CUresult op_kernel(struct op *out, const struct kernel_params *p);
CUresult op_copy(struct op *out, const struct copy3d *copy);
CUresult op_fill(struct op *out, const struct fill_params *p);
CUresult op_host(struct op *out, const struct host_params *p);
CUresult op_event(struct op *out, enum node_type type, CUevent event);
CUresult op_child(struct op *out, const struct graph *child);
CUresult op_memops(struct op *out, const struct memop_params *p);
CUresult op_any(struct op *out, const struct node_params *p); /* but memory nodes, whose parameters cannot be set */
void op_free(struct op *op);
/* The address for an allocation node: host memory that does not yet count on the GPU. */
CUresult graph_address(struct op *op, size_t bytes, int device);

/* graph_memory.c: a launch uses `peak` more bytes at its peak and `lasting` more bytes after it. */
CUresult graph_memory_grow(int device, uint64_t peak, uint64_t lasting);

/* graph_exec.c */
struct exec {
    uint64_t magic;
    unsigned long long flags;
    struct op *ops; /* in the order of execution; child graphs are expanded */
    size_t count;
    struct held_object *objects;
};
CUresult exec_valid(const struct exec *e);

/* user_object.c */
CUresult user_objects_copy(struct held_object **out, const struct held_object *list);
void user_objects_release(struct held_object **list);

#endif
