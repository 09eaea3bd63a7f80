/* Input 0: 16 int8; input 1: iterations of an empty loop, and the mishap to cause.
 * Output 0: input 0 reversed plus weights; output 1: exp(input[0] / 100), float;
 * output 2: number of inferences since init. Inferences overwrite the inputs. */
#include "fake_net.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#ifndef SMELT_WEIGHTS_SECTION
#define SMELT_WEIGHTS_SECTION
#endif

enum { NOTHING, UNDEFINED_INSTRUCTION, ENDLESS_RECURSION, ABORT, DEEP_STACK };

extern const int8_t fake_weights[16];
SMELT_WEIGHTS_SECTION const int8_t fake_weights[16] = {1, 2,  3,  4,  5,  6,  7,  8,
                                                        9, 10, 11, 12, 13, 14, 15, 16};

fake_net_status_t fake_net_init(fake_net_t *context, const fake_net_memory_t *memory) {
    if (context == NULL || memory == NULL || memory->arena == NULL || memory->state == NULL) {
        return FAKE_NET_ERROR_NULL;
    }
    memset(context, 0, sizeof *context);
    context->arena = memory->arena;
    context->state = memory->state;
    *context->state = 0;
    return FAKE_NET_OK;
}

void *fake_net_input(fake_net_t *context, int index) {
    return context->arena + 16 * index;
}

const void *fake_net_output(const fake_net_t *context, int index) {
    return context->arena + 32 + 16 * index;
}

/* Execute an empty loop, which takes two instructions an iteration on boards. */
static void iterate(uint32_t count) {
    if (count == 0u) {
        return;
    }
#if defined(__arm__)
    __asm__ volatile(".syntax unified\n1: subs %0, %0, #1\n\tbne 1b" : "+l"(count)::"cc");
#elif defined(__riscv)
    __asm__ volatile("1: addi %0, %0, -1\n\tbnez %0, 1b" : "+r"(count));
#else
    for (volatile uint32_t i = 0; i < count; i++) {
    }
#endif
}

static int32_t sink(volatile int32_t *pointer) {
    volatile int32_t block[64];
    block[0] = *pointer;
    block[63] = 1 + (*pointer < 0 ? 0 : sink(block));
    return block[63];
}

static void fill(volatile uint8_t *bytes, uint32_t count) {
    while (count-- > 0u) {
        bytes[count] = 1u;
    }
}

static int32_t deep(void) {
    uint8_t block[1000];
    fill(block, sizeof block);
    return block[5];
}

fake_net_status_t fake_net_invoke(fake_net_t *context) {
    int8_t *const input = (int8_t *)context->arena;
    int8_t *const reversed = (int8_t *)context->arena + 32;
    int32_t command[2];
    float power;
    memcpy(command, context->arena + 16, sizeof command);
    iterate((uint32_t)command[0]);
    switch (command[1]) {
    case UNDEFINED_INSTRUCTION:
        __builtin_trap();
        break;
    case ENDLESS_RECURSION:
        (void)sink(command);
        break;
    case ABORT:
        return FAKE_NET_ERROR_ABORTED;
    case DEEP_STACK:
        (void)deep();
        break;
    default:
        break;
    }
    for (int i = 0; i < 16; i++) {
        reversed[i] = (int8_t)(input[15 - i] + fake_weights[i]);
    }
#ifdef SMELT_STEP_CALLBACK
    if (context->callback != NULL && context->callback(context->user, 0, reversed, 16u) != 0) {
        return FAKE_NET_ERROR_ABORTED;
    }
#endif
    power = expf((float)input[0] / 100.0f);
    memcpy(context->arena + 48, &power, sizeof power);
#ifdef SMELT_STEP_CALLBACK
    if (context->callback != NULL && context->callback(context->user, 1, &power, 4u) != 0) {
        return FAKE_NET_ERROR_ABORTED;
    }
#endif
    ++*context->state;
    memcpy(context->arena + 64, context->state, sizeof *context->state);
    memset(context->arena, 0x55, 32);
    return FAKE_NET_OK;
}

#ifdef SMELT_STEP_CALLBACK
void fake_net_set_step_callback(fake_net_t *context,
                            int (*callback)(void *user, int step, const void *output,
                                            uint32_t bytes),
                            void *user) {
    context->callback = callback;
    context->user = user;
}
#endif
