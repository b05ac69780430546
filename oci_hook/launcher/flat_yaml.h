/* settings.yaml as the launcher reads it: the strict subset of YAML that config/flat_yaml.py describes.
 *
 * The two readers agree on every file: what one takes for a setting, the other does, with the same key and value; and
 * where one finds a line outside the subset, so does the other. tests/config/test_flat_yaml.py holds that. */
#ifndef FLAT_YAML_H
#define FLAT_YAML_H

#include "text.h"

#define FLAT_YAML_MAX (64 << 10) /* bytes of a file; flat_yaml.py's MAX_SIZE */

struct setting {
    struct text key, value; /* the value without its quotes; a list with its brackets */
    int list;
};

enum flat_yaml { FLAT_YAML_END, FLAT_YAML_SETTING, FLAT_YAML_OUTSIDE };

/* Reads *rest up to its next setting, or to its next line that is outside the subset, and moves *rest behind that line.
 * FLAT_YAML_END: there is none. Begin with the whole file, of at most FLAT_YAML_MAX bytes, and read to the end: a line
 * outside the subset makes the whole file one that is not understood. */
enum flat_yaml flat_yaml_next(struct text *rest, struct setting *found);

#endif
