/* See process_json.h. The text is not checked beyond what is needed to find `env`: the runtime reads all of it. */
#define _GNU_SOURCE
#include "process_json.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- reading: each returns the place after what it read, or NULL --------------------------------------------------- */

static const char *after_space(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n'))
        p++;
    return p;
}

static const char *after_string(const char *p, const char *end) {
    if (p == end || *p != '"')
        return NULL;
    for (p++; p < end; p++) {
        if (*p == '"')
            return p + 1;
        if ((unsigned char)*p < 0x20)
            return NULL;
        if (*p == '\\')
            p++;
    }
    return NULL;
}

static const char *after_brackets(const char *p, const char *end) {
    for (size_t depth = 0; p && p < end;) {
        if (*p == '"') {
            p = after_string(p, end);
            continue;
        }
        depth += *p == '{' || *p == '[';
        depth -= *p == '}' || *p == ']';
        p++;
        if (!depth)
            return p;
    }
    return NULL;
}

static const char *after_value(const char *p, const char *end) {
    if (p == end)
        return NULL;
    if (*p == '"')
        return after_string(p, end);
    if (*p == '{' || *p == '[')
        return after_brackets(p, end);
    const char *start = p;
    while (p < end && !memchr(",]} \t\r\n", *p, 7))
        p++;
    return p > start ? p : NULL;
}

static const char *after_char(char c, const char *p, const char *end) {
    p = after_space(p, end);
    return p < end && *p == c ? p + 1 : NULL;
}

/* ---- where `env` is ------------------------------------------------------------------------------------------------ */

struct place {
    const char *inside; /* after the object's opening brace */
    bool empty;         /* the object has no members */
    struct text env;    /* the value of `env`; `at` is NULL where there is none */
};

/* Go's decoder takes "ENV" for "env", and an escape may hide either; others compare the bytes. */
static bool is_env(struct text key, bool *odd) {
    if (memchr(key.at, '\\', key.size))
        *odd = true;
    if (key.size != 3 || strncasecmp(key.at, "env", 3) != 0)
        return false;
    *odd |= memcmp(key.at, "env", 3) != 0;
    return true;
}

static bool find_env(struct text t, struct place *found) {
    const char *end = t.at + t.size, *p = after_char('{', t.at, end);
    *found = (struct place){.inside = p};
    if (!p)
        return false;
    if (after_char('}', p, end)) {
        found->empty = true;
        return true;
    }
    for (;;) {
        const char *key = after_space(p, end), *key_end = after_string(key, end);
        p = key_end ? after_char(':', key_end, end) : NULL;
        if (!p)
            return false;
        const char *value = after_space(p, end);
        p = after_value(value, end);
        if (!p)
            return false;
        bool odd = false;
        if (is_env((struct text){key + 1, (size_t)(key_end - key) - 2}, &odd)) {
            odd |= found->env.at != NULL;
            found->env = (struct text){value, (size_t)(p - value)};
        }
        if (odd)
            return false;
        const char *comma = after_char(',', p, end);
        if (!comma)
            return after_char('}', p, end) != NULL;
        p = comma;
    }
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

struct list {
    char *to; /* where the next byte goes */
    bool begun;
};

static void add(struct list *list, struct text text) {
    memcpy(list->to, text.at, text.size);
    list->to += text.size;
}

static void begin_item(struct list *list) {
    if (list->begun)
        *list->to++ = ',';
    list->begun = true;
}

static void add_entry(struct text entry, void *with) {
    struct list *list = with;
    if (!memchr(entry.at, '=', entry.size))
        return;
    begin_item(list);
    *list->to++ = '"';
    for (const char *p = entry.at; p < entry.at + entry.size; p++) {
        if ((unsigned char)*p < 0x20) {
            list->to += sprintf(list->to, "\\u%04x", (unsigned)*p);
            continue;
        }
        if (*p == '"' || *p == '\\')
            *list->to++ = '\\';
        *list->to++ = *p;
    }
    *list->to++ = '"';
}

void each_entry(struct text entries, void (*take)(struct text entry, void *with), void *with) {
    const char *end = entries.at + entries.size;
    for (const char *zero, *p = entries.at; p < end && (zero = memchr(p, 0, (size_t)(end - p))); p = zero + 1)
        take((struct text){p, (size_t)(zero - p)}, with);
}

struct search {
    struct text item; /* inside its quotes */
    bool found;
};

static void compare_name(struct text entry, void *with) {
    struct search *search = with;
    const char *equals = memchr(entry.at, '=', entry.size);
    size_t size = equals ? (size_t)(equals - entry.at) : entry.size;
    if (search->item.size >= size && !memcmp(search->item.at, entry.at, size) &&
        (search->item.size == size || search->item.at[size] == '='))
        search->found = true;
}

/* Adds the items of an array of strings whose names are in no entry. Whether it is such an array. */
static bool add_others(struct list *list, struct text array, struct text entries) {
    const char *end = array.at + array.size, *p = after_char('[', array.at, end);
    if (!p)
        return array.size == 4 && !memcmp(array.at, "null", 4);
    if (after_char(']', p, end))
        return true;
    for (;;) {
        const char *item = after_space(p, end);
        p = after_string(item, end);
        if (!p)
            return false;
        struct search search = {{item + 1, (size_t)(p - item) - 2}, false};
        each_entry(entries, compare_name, &search);
        if (!search.found) {
            begin_item(list);
            add(list, (struct text){item, (size_t)(p - item)});
        }
        const char *comma = after_char(',', p, end);
        if (!comma)
            return after_char(']', p, end) == end;
        p = comma;
    }
}

struct text process_with(struct text process, struct text entries) {
    static const char name[] = "\"env\":";
    struct text result = {NULL, 0};
    struct place place;
    if (!find_env(process, &place))
        return result;
    /* an escaped byte takes six, an entry its quotes and a comma; the rest: the name, brackets, and a comma */
    char *buffer = malloc(process.size + 9 * entries.size + sizeof name + 4);
    if (!buffer)
        return result;
    struct list list = {buffer, false};
    const char *start = place.env.at ? place.env.at : place.inside;
    add(&list, (struct text){process.at, (size_t)(start - process.at)});
    if (!place.env.at)
        add(&list, (struct text){name, sizeof name - 1});
    *list.to++ = '[';
    if (place.env.at && !add_others(&list, place.env, entries)) {
        free(buffer);
        return result;
    }
    each_entry(entries, add_entry, &list);
    *list.to++ = ']';
    if (!place.env.at && !place.empty)
        *list.to++ = ',';
    start += place.env.size;
    add(&list, (struct text){start, (size_t)(process.at + process.size - start)});
    return (struct text){buffer, (size_t)(list.to - buffer)};
}
