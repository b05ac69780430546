/* Ends of stream captures wait for allocations that rely on the capture: process/captures.h. */
#include "driver/cuda.h"
#include "driver/real.h"
#include "process/captures.h"

typedef CUresult end_call(CUstream, CUgraph *);

static CUresult end(CUstream stream, CUgraph *graph, end_call *call) {
    struct gh_state *st = gh_here();
    captures_may_end(st, true);
    CUresult r = call(stream, graph);
    captures_have_ended(st);
    return r;
}

GH_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    return end(stream, graph, REAL(cuStreamEndCapture));
}
GH_EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return end(stream, graph, REAL(cuStreamEndCapture_ptsz));
}
