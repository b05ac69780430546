/* Before a container ends by the runtime's kill or delete, the driver's soft limits of it become 0, while its cgroup exists:
 * those above might keep them for ever (boundary/leaks.py). */
#ifndef END_LIMITS_H
#define END_LIMITS_H

/* key: of the container's grant. Does nothing for a container without a soft limit,
 * and none is set where the node does not lend memory. Waits for the driver for some seconds at most. */
void end_limits(const char *prefix, const char *state_dir, const char *key);

#endif
