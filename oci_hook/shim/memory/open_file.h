/* Descriptors of our own, in a process whose program may close or use any number. All of memory/ reads and closes them
 * by raw system calls, which are no cancellation points: a cancelled thread would leave a lock held. */
#ifndef GPU_HOOK_OPEN_FILE_H
#define GPU_HOOK_OPEN_FILE_H

#include <stdint.h>

/* A descriptor of our own for the same open file, out of the way of the program's; -1: none. errno is the kernel's. */
int hold_open_file(int fd);
/* Closes it, unless the program has closed it and uses its number for another file. */
void let_go_of_open_file(int fd, uint64_t inode);
/* Identity of a file; 0: no such descriptor. */
uint64_t inode_of(int fd);

#endif
