/* Flags on a runtime's command line, as runc (Go's flag package), crun and youki read them. */
#ifndef FLAGS_H
#define FLAGS_H

enum flag { UNKNOWN, SWITCH, VALUE, STOP }; /* STOP: the runtime prints something and ends, whatever follows */

struct known {
    const char *name;
    enum flag kind;
};

/* Reads argv[*i] as a flag: returns its kind, sets *name to its row's name and *value to its value (of a switch NULL, or what Go
 * takes after its "="), and moves *i to the last word that belongs to it. A table ends with an empty row. Of several letters in
 * one word, as crun and youki take them ("-tdpFILE"), it is the last flag, since only that can have a value. */
enum flag read_flag(const struct known *table, char **argv, int *i, const char **name, const char **value);

#endif
