/* Paths of the shims' files in a container. Twin: oci_hook/core/layout.py; a test compares them.
 * Tests build with another GH_PRIVATE. */
#ifndef GPU_HOOK_LAYOUT_H
#define GPU_HOOK_LAYOUT_H

#ifndef GH_PRIVATE
#define GH_PRIVATE "/run/gpu-hook"
#endif
#define GH_REAL_LIBCUDA GH_PRIVATE "/driver/cuda"
#define GH_REAL_LIBNVML GH_PRIVATE "/driver/ml"
#define GH_POLICY_FILE GH_PRIVATE "/policy"
#define GH_ACCOUNT_FILE GH_PRIVATE "/account/page"
/* The first process makes this file; its locks: gate/slot_own.c. */
#define GH_PROCESS_LOCKS GH_PRIVATE "/account/slots"
#define GH_SHARE_DIR GH_PRIVATE "/share"
#define GH_SLOT_FILE GH_PRIVATE "/slot"

#endif
