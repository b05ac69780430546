/* See flags.h. */
#include "flags.h"

#include <stdbool.h>
#include <string.h>

static const struct known *row_of(const struct known *table, const char *word, size_t length) {
    for (; table->name; table++)
        if (strlen(table->name) == length && !memcmp(table->name, word, length))
            return table;
    return NULL;
}

enum flag read_flag(const struct known *table, char **argv, int *i, const char **name, const char **value) {
    const char *word = argv[*i] + 1;
    bool letters = *word && *word != '-';
    if (*word == '-')
        word++;
    size_t length = strcspn(word, "=");
    const struct known *row = row_of(table, word, length);
    if (row) {
        *value = word[length] ? word + length + 1 : NULL;
        if (row->kind == STOP && *value)
            return UNKNOWN; /* "--help=false" stops nothing */
    } else {
        do
            row = letters ? row_of(table, word++, 1) : NULL;
        while (row && row->kind == SWITCH && *word);
        if (!row || row->kind == STOP)
            return UNKNOWN;
        *value = *word ? word : NULL;
    }
    *name = row->name;
    if (row->kind == VALUE && !*value && !(*value = argv[++*i]))
        return UNKNOWN;
    return row->kind;
}
