/* A network written by hand, with the interface of a generated one, for tests of the firmware. */
#ifndef FAKE_NET_H
#define FAKE_NET_H

#include <stdint.h>

#define FAKE_NET_API_VERSION 1
#ifndef FAKE_NET_ARENA_BYTES
#define FAKE_NET_ARENA_BYTES 96
#endif
#define FAKE_NET_ARENA_ALIGN 16
#define FAKE_NET_STATE_BYTES 4
#define FAKE_NET_INPUT_COUNT 2
#define FAKE_NET_OUTPUT_COUNT 3
#define FAKE_NET_INPUT_0_BYTES 16
#define FAKE_NET_INPUT_0_SCALE 0.5f
#define FAKE_NET_INPUT_0_ZERO_POINT (-3)
#define FAKE_NET_INPUT_1_BYTES 8
#define FAKE_NET_OUTPUT_0_BYTES 16
#define FAKE_NET_OUTPUT_0_SCALE 0.25f
#define FAKE_NET_OUTPUT_0_ZERO_POINT 1
#define FAKE_NET_OUTPUT_1_BYTES 4
#define FAKE_NET_OUTPUT_2_BYTES 4
#define FAKE_NET_HASH "0123456789abcdef"

typedef enum {
    FAKE_NET_OK = 0,
    FAKE_NET_ERROR_NULL,
    FAKE_NET_ERROR_MISALIGNED,
    FAKE_NET_ERROR_ABORTED
} fake_net_status_t;

typedef struct {
    void *arena;
    void *state;
} fake_net_memory_t;

typedef struct {
    uint8_t *arena;
    int32_t *state;
#ifdef SMELT_STEP_CALLBACK
    int (*callback)(void *user, int step, const void *output, uint32_t bytes);
    void *user;
#endif
} fake_net_t;

fake_net_status_t fake_net_init(fake_net_t *context, const fake_net_memory_t *memory);
void *fake_net_input(fake_net_t *context, int index);
const void *fake_net_output(const fake_net_t *context, int index);
fake_net_status_t fake_net_invoke(fake_net_t *context);

#ifdef SMELT_STEP_CALLBACK
void fake_net_set_step_callback(fake_net_t *context,
                            int (*callback)(void *user, int step, const void *output,
                                            uint32_t bytes),
                            void *user);
#endif

#endif
