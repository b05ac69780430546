/* Simulated libcuda: what a cubin holds. A cubin is an ELF file, as ptxas and nvcc write it. */
#define _GNU_SOURCE
#include "module.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 64, CUDA_MACHINE = 190 }; /* what is written around a name; EM_CUDA */

/* True if a symbol is a variable that the driver gives memory to. */
static bool is_variable(const Elf64_Sym *s, const char *section) {
    return ELF64_ST_TYPE(s->st_info) == STT_OBJECT && s->st_size &&
           (!strncmp(section, ".nv.global", 10) || !strncmp(section, ".nv.constant", 12));
}

static bool is_kernel(const Elf64_Sym *s) {
    return ELF64_ST_TYPE(s->st_info) == STT_FUNC && ELF64_ST_BIND(s->st_info) == STB_GLOBAL;
}

/* Writes a line for each kernel and variable to `out`, which has room; NULL: only counts. The bytes that it takes. */
static size_t write_names(const char *image, const Elf64_Shdr *sections, const Elf64_Ehdr *head, char *out) {
    const char *section_names = image + sections[head->e_shstrndx].sh_offset;
    size_t used = 0;
    for (int i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB || sections[i].sh_link >= head->e_shnum)
            continue;
        const Elf64_Sym *s = (const void *)(image + sections[i].sh_offset);
        const char *names = image + sections[sections[i].sh_link].sh_offset;
        for (const Elf64_Sym *end = s + sections[i].sh_size / sizeof *s; s < end; s++) {
            const char *name = names + s->st_name;
            if (s->st_shndx == SHN_UNDEF || s->st_shndx >= head->e_shnum)
                continue;
            bool variable = is_variable(s, section_names + sections[s->st_shndx].sh_name);
            if (!variable && !is_kernel(s))
                continue;
            size_t room = strlen(name) + ROOM;
            if (out && variable)
                used +=
                    (size_t)snprintf(out + used, room, ".global .align 16 .b8 %s[%zu];\n", name, (size_t)s->st_size);
            else if (out)
                used += (size_t)snprintf(out + used, room, ".entry %s()\n", name);
            else
                used += room;
        }
    }
    return used;
}

char *cubin_text(const void *image) {
    const Elf64_Ehdr *head = image;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) || head->e_ident[EI_CLASS] != ELFCLASS64 ||
        head->e_machine != CUDA_MACHINE || !head->e_shoff || head->e_shentsize != sizeof(Elf64_Shdr) ||
        head->e_shstrndx >= head->e_shnum)
        return NULL;
    const Elf64_Shdr *sections = (const void *)((const char *)image + head->e_shoff);
    size_t room = write_names(image, sections, head, NULL) + 1;
    char *text = calloc(1, room);
    if (text)
        write_names(image, sections, head, text);
    return text;
}
