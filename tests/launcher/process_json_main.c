/* process_json.c by itself: reads texts from standard input, each a 32-bit size and the bytes, in turn a process and entries.
 * For each pair: the size of the result, 0 for none, and the result. Each text has memory of its own size, so that a sanitizer
 * sees a read beyond its end. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../oci_hook/launcher/process_json.h"

static int next(struct text *text) {
    uint32_t size;
    if (fread(&size, sizeof size, 1, stdin) != 1)
        return 0;
    char *at = malloc(size);
    if (size && fread(at, 1, size, stdin) != size)
        return 0;
    *text = (struct text){at, size};
    return 1;
}

int main(void) {
    struct text process, entries;
    while (next(&process) && next(&entries)) {
        struct text found = process_with(process, entries);
        uint32_t size = found.at ? (uint32_t)found.size : 0;
        fwrite(&size, sizeof size, 1, stdout);
        if (size)
            fwrite(found.at, 1, size, stdout);
        free((char *)found.at);
        free((char *)process.at);
        free((char *)entries.at);
    }
    return 0;
}
