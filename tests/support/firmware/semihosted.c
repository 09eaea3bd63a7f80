/* Replaces wire.c: reads inputs and writes outputs by semihosting (Arm, "Semihosting for AArch32 and
 * AArch64", 2.0), in pieces of any length instead of byte by byte.
 *
 * in.bin: the number of samples and of run-time sizes; then for each sample its sizes and all inputs.
 * out.bin: all outputs of each sample. */
#include <stddef.h>

#include "text.h"
#include "wire.h"

enum { SYS_OPEN = 0x01, SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_EXIT = 0x18 };
enum { READ_BINARY = 1, WRITE_BINARY = 5 };

#define ADP_STOPPED_APPLICATION_EXIT ((const void *)0x20026)

static int call(int operation, const void *argument) {
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

__attribute__((noreturn)) static void finish(const char *problem) {
    if (problem != NULL) {
        smelt_put_line(problem);
    }
    (void)call(SYS_EXIT, ADP_STOPPED_APPLICATION_EXIT);
    for (;;) {
    }
}

static int opened(const char *name, uint32_t length, int mode) {
    const struct {
        const char *name;
        int mode;
        uint32_t length;
    } block = {name, mode, length};
    const int handle = call(SYS_OPEN, &block);
    if (handle < 0) {
        finish("a file cannot be opened");
    }
    return handle;
}

static void move(int operation, int handle, const void *data, uint32_t bytes) {
    const struct {
        int handle;
        const void *data;
        uint32_t bytes;
    } block = {handle, data, bytes};
    if (bytes > 0u && call(operation, &block) != 0) {
        finish("a file is too short, or full");
    }
}

static void run(const smelt_model_t *model, int from, int to, uint32_t lengths) {
    for (uint32_t i = 0; i < lengths; i++) {
        uint32_t size;
        move(SYS_READ, from, &size, sizeof size);
        if (model->set_length == NULL || model->set_length(i, size) != 0) {
            finish("a size is refused");
        }
    }
    for (uint32_t i = 0; i < model->input_count; i++) {
        move(SYS_READ, from, model->input((int)i), model->inputs[i].bytes);
    }
    if (model->invoke().status != 0) {
        finish("the inference failed");
    }
    for (uint32_t i = 0; i < model->output_count; i++) {
        move(SYS_WRITE, to, model->output((int)i), model->outputs[i].bytes);
    }
}

void smelt_wire_run(const smelt_model_t *model, smelt_command_t other, void *context) {
    (void)other;
    (void)context;
    const int from = opened("in.bin", 6, READ_BINARY), to = opened("out.bin", 7, WRITE_BINARY);
    uint32_t counts[2];
    move(SYS_READ, from, counts, sizeof counts);
    for (uint32_t i = 0; i < counts[0]; i++) {
        run(model, from, to, counts[1]);
    }
    finish(NULL);
}
