/* A runtime-spec `process` object as JSON, which engines hand to `exec --process`: its environment is changed, and every
 * other byte stays as it is. */
#ifndef PROCESS_JSON_H
#define PROCESS_JSON_H

#include "text.h"

/* Calls take(entry, with) for each of the entries, which are NAME=VALUE to set, or NAME to remove, each with a zero byte after
 * it. What follows the last zero byte is no entry. */
void each_entry(struct text entries, void (*take)(struct text entry, void *with), void *with);

/* The text with these entries in `env`, after those of other names; to be freed. `at` is NULL where memory is short, and where
 * the text is not what every runtime would read alike: then it should be left as it is. */
struct text process_with(struct text process, struct text entries);

#endif
