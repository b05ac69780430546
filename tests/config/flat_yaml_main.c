/* Prints what launcher/flat_yaml.c makes of each file on standard input: SIZE, a line feed, and SIZE bytes. For each file
 * `key NUL kind value NUL` of every setting (kind: [ of a list, else =), `? NUL NUL` for a line outside the subset, and an
 * empty key at the end. */
#include "flat_yaml.h"

#include <stdio.h>
#include <stdlib.h>

static void print(struct text t, const char *before) {
    fputs(before, stdout);
    fwrite(t.at, 1, t.size, stdout);
    putchar(0);
}

int main(void) {
    size_t size;
    while (scanf("%zu", &size) == 1) {
        getchar();
        char *data = malloc(size + 1);
        if (!data || fread(data, 1, size, stdin) != size)
            return 1;
        struct text rest = {data, size};
        struct setting s;
        for (enum flat_yaml what; (what = flat_yaml_next(&rest, &s)) != FLAT_YAML_END;) {
            if (what == FLAT_YAML_OUTSIDE) {
                print((struct text){"", 0}, "?");
                print((struct text){"", 0}, "");
            } else {
                print(s.key, "");
                print(s.value, s.list ? "[" : "=");
            }
        }
        putchar(0);
        fflush(stdout);
        free(data);
    }
    return 0;
}
