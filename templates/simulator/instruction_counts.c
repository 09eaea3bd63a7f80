/* A QEMU plugin that counts what a region of the simulated program executes.
 *
 * There are counters for each address and part. A part is a call of a layer's kernel: it begins
 * with the calling instruction and ends before the instruction that the call returns to. All
 * instructions outside of calls belong to part 0. When the instruction at `start` executes, all
 * counters are set to 0. When the instruction at `stop` executes, they are written to a file.
 *
 * The plugin takes one argument, `spec=FILE`. The lines of this file are:
 *
 *   code LOW HIGH      the addresses of the code; must be the first line
 *   flash LOW HIGH     the addresses of memory with wait states; optional
 *   start ADDRESS      the first instruction of the region
 *   stop ADDRESS       the first instruction after the region
 *   part CALL RETURN   a part: the calling instruction, and the instruction after the call; parts
 *                      are numbered from 1 in the order of these lines
 *   out PATH           the file of the result; rewritten at the end of each region
 *
 * A line of the result has these numbers:
 *
 *   - the part
 *   - the address, in hexadecimal
 *   - how many times the instruction was executed
 *   - how many times another instruction than the next one in memory followed; meaningful for
 *     branches only, because QEMU may report a wrong size of the last instruction of a page
 *   - loads and stores whose address is not a multiple of their size
 *   - loads from flash that read another line of 16 bytes than the previous load from flash
 *
 * QEMU's header is not packaged everywhere, so the required parts of it are declared here. They are
 * the same in all versions of the interface up to version 2 (QEMU 9). Earlier versions of QEMU
 * require version 1.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef QEMU_PLUGIN_VERSION
#define QEMU_PLUGIN_VERSION 1
#endif

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_info;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
enum qemu_plugin_mem_rw { QEMU_PLUGIN_MEM_RW = 3 };

void qemu_plugin_register_vcpu_tb_trans_cb(
    qemu_plugin_id_t id, void (*callback)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(
    struct qemu_plugin_tb *block, void (*callback)(unsigned int, void *),
    enum qemu_plugin_cb_flags flags, void *user);
void qemu_plugin_register_vcpu_insn_exec_cb(
    struct qemu_plugin_insn *instruction, void (*callback)(unsigned int, void *),
    enum qemu_plugin_cb_flags flags, void *user);
void qemu_plugin_register_vcpu_mem_cb(
    struct qemu_plugin_insn *instruction,
    void (*callback)(unsigned int, qemu_plugin_meminfo_t, uint64_t, void *),
    enum qemu_plugin_cb_flags flags, enum qemu_plugin_mem_rw accesses, void *user);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *instruction);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *instruction);
unsigned int qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t access);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t access);

#define EXPORT __attribute__((visibility("default")))
EXPORT extern int qemu_plugin_version;
EXPORT int qemu_plugin_install(
    qemu_plugin_id_t id, const struct qemu_info *info, int argc, char **argv);

int qemu_plugin_version = QEMU_PLUGIN_VERSION;

typedef struct {
    uint64_t executions, taken, misaligned, flash_lines;
} counts_t;

/* Whether a part begins or ends at an instruction. Instructions are identified by their slot: the
 * index of their first halfword in the code. */
typedef struct {
    uint32_t part; /* the part that the instruction begins, or 0 */
    bool ends_part;
} mark_t;

#define FLASH_LINE 16u /* bytes that one access reads from flash */

static uint64_t code_low, code_high, flash_low, flash_high, start, stop;
static size_t slots, parts = 1;
static mark_t *marks;    /* by slot */
static counts_t **table; /* by part, then by slot; a part's row is allocated when it first runs */
static counts_t *current; /* the counts of the running part; NULL outside the region */
static uint64_t last_line;
static char *out;

/* A block that QEMU has translated. It is entered only at its first instruction, and a branch can
 * only be its last instruction. */
typedef struct {
    uint64_t first, last, after; /* `after` is the address after the instruction `last` */
} block_t;
static const block_t *before; /* the previously executed block */

static void fail(const char *problem, const char *detail) {
    fprintf(stderr, "qemu: instruction counter: %s%s\n", problem, detail);
    exit(1);
}

static void *allocate(size_t count, size_t size) {
    void *const memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL) {
        fail("out of memory", "");
    }
    return memory;
}

static bool in_code(uint64_t address) {
    return address >= code_low && address < code_high;
}

static size_t slot_of(uint64_t address) {
    return (size_t)((address - code_low) / 2);
}

static counts_t *counts_of(size_t part) {
    if (table[part] == NULL) {
        table[part] = allocate(slots, sizeof(counts_t));
    }
    return table[part];
}

static void begin_region(void) {
    for (size_t part = 0; part < parts; part++) {
        if (table[part] != NULL) {
            memset(table[part], 0, slots * sizeof(counts_t));
        }
    }
    last_line = UINT64_MAX;
    current = counts_of(0);
}

static void end_region(void) {
    FILE *const file = fopen(out, "w");
    if (file == NULL) {
        fail("cannot write ", out);
    }
    for (size_t part = 0; part < parts; part++) {
        for (size_t slot = 0; table[part] != NULL && slot < slots; slot++) {
            const counts_t *const c = &table[part][slot];
            if (c->executions > 0) {
                fprintf(file, "%zu %" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                        part, code_low + 2 * slot, c->executions, c->taken, c->misaligned,
                        c->flash_lines);
            }
        }
    }
    if (fclose(file) != 0) {
        fail("cannot write ", out);
    }
    current = NULL;
}

static void on_block(unsigned int cpu, void *user) {
    const block_t *const block = user;
    (void)cpu;
    if (current != NULL && before != NULL && in_code(before->last) &&
        block->first != before->after) {
        current[slot_of(before->last)].taken++;
    }
    before = block;
}

static void on_start(unsigned int cpu, void *user) {
    (void)cpu;
    (void)user;
    begin_region();
}

static void on_stop(unsigned int cpu, void *user) {
    (void)cpu;
    (void)user;
    if (current != NULL) {
        end_region();
    }
}

/* The user data of `on_instruction` and `on_access` is the instruction's slot. */
static void on_instruction(unsigned int cpu, void *user) {
    const size_t slot = (uintptr_t)user;
    (void)cpu;
    if (current == NULL) {
        return;
    }
    if (marks[slot].part != 0) {
        current = counts_of(marks[slot].part);
    } else if (marks[slot].ends_part) {
        current = counts_of(0);
    }
    current[slot].executions++;
}

static void on_access(unsigned int cpu, qemu_plugin_meminfo_t access, uint64_t address, void *user) {
    const uint64_t size = UINT64_C(1) << qemu_plugin_mem_size_shift(access);
    const uint64_t line = address / FLASH_LINE;
    (void)cpu;
    if (current == NULL) {
        return;
    }
    counts_t *const counts = &current[(uintptr_t)user];
    if (address % size != 0) {
        counts->misaligned++;
    }
    if (!qemu_plugin_mem_is_store(access) && address >= flash_low && address < flash_high &&
        line != last_line) {
        last_line = line;
        counts->flash_lines++;
    }
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *translated) {
    const size_t count = qemu_plugin_tb_n_insns(translated);
    block_t *const block = allocate(1, sizeof *block); /* never freed: QEMU may execute it until the end */
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(translated, on_block, QEMU_PLUGIN_CB_NO_REGS, block);
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *const instruction = qemu_plugin_tb_get_insn(translated, i);
        const uint64_t address = qemu_plugin_insn_vaddr(instruction);
        block->first = i == 0 ? address : block->first;
        block->last = address;
        block->after = address + qemu_plugin_insn_size(instruction);
        if (!in_code(address)) {
            continue;
        }
        /* Callbacks of an instruction run in the order in which they are registered. */
        if (address == start || address == stop) {
            qemu_plugin_register_vcpu_insn_exec_cb(
                instruction, address == start ? on_start : on_stop, QEMU_PLUGIN_CB_NO_REGS, NULL);
        }
        void *const slot = (void *)(uintptr_t)slot_of(address);
        qemu_plugin_register_vcpu_insn_exec_cb(
            instruction, on_instruction, QEMU_PLUGIN_CB_NO_REGS, slot);
        qemu_plugin_register_vcpu_mem_cb(
            instruction, on_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, slot);
    }
}

static void add_part(uint64_t call, uint64_t back) {
    if (!in_code(call) || !in_code(back)) {
        fail("a part is outside the code", "");
    }
    marks[slot_of(call)].part = (uint32_t)parts++;
    marks[slot_of(back)].ends_part = true;
}

static void read_line(const char *line) {
    uint64_t first = 0, second = 0;
    if (sscanf(line, "code %" SCNx64 " %" SCNx64, &first, &second) == 2 && first < second) {
        code_low = first;
        code_high = second;
        slots = slot_of(second);
        marks = allocate(slots, sizeof *marks);
    } else if (sscanf(line, "flash %" SCNx64 " %" SCNx64, &flash_low, &flash_high) == 2 ||
               sscanf(line, "start %" SCNx64, &start) == 1 ||
               sscanf(line, "stop %" SCNx64, &stop) == 1) {
        return;
    } else if (sscanf(line, "part %" SCNx64 " %" SCNx64, &first, &second) == 2) {
        add_part(first, second);
    } else if (strncmp(line, "out ", 4) == 0) {
        out = allocate(strlen(line + 4) + 1, 1);
        strcpy(out, line + 4);
    } else {
        fail("unknown line of the specification: ", line);
    }
}

static void read_specification(const char *path) {
    char line[4096];
    FILE *const file = fopen(path, "r");
    if (file == NULL) {
        fail("cannot read ", path);
    }
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        read_line(line);
    }
    (void)fclose(file);
    if (marks == NULL || out == NULL) {
        fail("the specification has no line `code` or no line `out`: ", path);
    }
    table = allocate(parts, sizeof *table);
}

int qemu_plugin_install(
    qemu_plugin_id_t id, const struct qemu_info *info, int argc, char **argv) {
    (void)info;
    if (argc != 1 || strncmp(argv[0], "spec=", 5) != 0) {
        fail("expected one argument, spec=FILE", "");
    }
    read_specification(argv[0] + 5);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    return 0;
}
