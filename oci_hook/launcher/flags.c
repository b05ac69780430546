/* See flags.h. */
#include "flags.h"

#include <string.h>

enum flag read_flag(const struct known *table, char **argv, int *i, const char **name, const char **value) {
    const char *word = argv[*i] + 1;
    if (*word == '-')
        word++;
    size_t length = strcspn(word, "=");
    for (; table->name; table++) {
        if (strlen(table->name) != length || memcmp(table->name, word, length))
            continue;
        *name = table->name;
        *value = word[length] ? word + length + 1 : NULL;
        if (table->kind == VALUE && !*value && !(*value = argv[++*i]))
            return UNKNOWN;
        /* a switch with a value, as "--debug=false", is left to Python */
        return table->kind != VALUE && *value ? UNKNOWN : table->kind;
    }
    return UNKNOWN;
}
