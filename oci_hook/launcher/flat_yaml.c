/* See flat_yaml.h, and config/flat_yaml.py for the rules. */
#include "flat_yaml.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
static bool is_word(char c) { return is_lower(c) || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }
static bool is_key(char c) { return is_lower(c) || (c >= '0' && c <= '9') || c == '_' || c == '.'; }
static bool is_item(char c) { return is_word(c) || c == '_' || c == '.' || c == '-'; }
static bool is_plain(char c) { return is_item(c) || (c && strchr("/:+%@=,~", c)); }

static struct text from(struct text t, size_t start) { return (struct text){t.at + start, t.size - start}; }

static size_t blanks(struct text t) {
    size_t n = 0;
    while (n < t.size && t.at[n] == ' ')
        n++;
    return n;
}

/* Whether the characters from `start` on are of this kind. */
static bool all(struct text t, size_t start, bool (*kind)(char)) {
    for (size_t i = start; i < t.size; i++)
        if (!kind(t.at[i]))
            return false;
    return true;
}

/* Whether the line is UTF-8 (RFC 3629) without characters that settings may not have: controls, and what YAML takes for
 * the end of a line or refuses. */
static bool characters(struct text line) {
    const unsigned char *p = (const unsigned char *)line.at, *end = p + line.size;
    while (p < end) {
        if (*p < 0x80) {
            if (*p < 0x20 || *p == 0x7f)
                return false;
            p++;
            continue;
        }
        int more = *p >= 0xc2 && *p <= 0xdf ? 1 : (*p & 0xf0) == 0xe0 ? 2 : *p >= 0xf0 && *p <= 0xf4 ? 3 : 0;
        static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
        if (!more || end - p <= more)
            return false;
        uint32_t c = *p & (0x3f >> more);
        for (int i = 1; i <= more; i++) {
            if ((p[i] & 0xc0) != 0x80)
                return false;
            c = c << 6 | (p[i] & 0x3f);
        }
        if (c < least[more] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
            return false;
        if (c < 0xa0 || c == 0x2028 || c == 0x2029 || c == 0xfeff || c == 0xfffe || c == 0xffff)
            return false;
        p += 1 + more;
    }
    return true;
}

/* Whether what follows a value is nothing, blanks, or blanks and a comment. */
static bool is_tail(struct text t) {
    size_t n = blanks(t);
    return n == t.size || (n && t.at[n] == '#');
}

/* Whether t, the inside of a list's brackets, is words with commas between them. */
static bool is_list(struct text t) {
    if (blanks(t) == t.size)
        return true;
    for (;;) {
        const char *comma = memchr(t.at, ',', t.size);
        struct text item = {t.at, comma ? (size_t)(comma - t.at) : t.size};
        item = from(item, blanks(item));
        while (item.size && item.at[item.size - 1] == ' ')
            item.size--;
        if (!item.size || !is_word(item.at[0]) || !all(item, 1, is_item))
            return false;
        if (!comma)
            return true;
        t = from(t, (size_t)(comma - t.at) + 1);
    }
}

static bool read_value(struct text t, struct setting *found) {
    char first = t.at[0];
    found->list = first == '[';
    if (first == '"' || first == '\'' || first == '[') {
        const char *end = memchr(t.at + 1, first == '[' ? ']' : first, t.size - 1);
        if (!end)
            return false;
        struct text inside = {t.at + 1, (size_t)(end - t.at) - 1};
        found->value = first == '[' ? (struct text){t.at, inside.size + 2} : inside;
        if (first == '[' ? !is_list(inside) : first == '"' && memchr(inside.at, '\\', inside.size))
            return false;
        return is_tail(from(t, inside.size + 2));
    }
    const char *end = memchr(t.at, ' ', t.size);
    struct text word = found->value = (struct text){t.at, end ? (size_t)(end - t.at) : t.size};
    return (is_word(first) || first == '/') && all(word, 1, is_plain) && word.at[word.size - 1] != ':' &&
           is_tail(from(t, word.size));
}

static bool read_line(struct text line, struct setting *found) {
    size_t n = 0;
    while (n < line.size && is_key(line.at[n]))
        n++;
    if (!n || !is_lower(line.at[0]) || n == line.size || line.at[n] != ':')
        return false;
    found->key = (struct text){line.at, n};
    struct text rest = from(line, n + 1);
    n = blanks(rest);
    if (!n || n == rest.size)
        return false;
    return read_value(from(rest, n), found);
}

enum flat_yaml flat_yaml_next(struct text *rest, struct setting *found) {
    while (rest->size) {
        const char *end = memchr(rest->at, '\n', rest->size);
        struct text line = {rest->at, end ? (size_t)(end - rest->at) : rest->size};
        *rest = from(*rest, line.size + (end ? 1 : 0));
        size_t n = blanks(line);
        if (!characters(line))
            return FLAT_YAML_OUTSIDE;
        if (n < line.size && line.at[n] != '#')
            return !n && read_line(line, found) ? FLAT_YAML_SETTING : FLAT_YAML_OUTSIDE;
    }
    return FLAT_YAML_END;
}
