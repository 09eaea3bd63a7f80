/* A network written by hand, with the interface of a generated one: what the firmware is tested with. */
#ifndef FAKE_H
#define FAKE_H

#include <stdint.h>

#define FAKE_API_VERSION 1
#ifndef FAKE_ARENA_BYTES
#define FAKE_ARENA_BYTES 96
#endif
#define FAKE_ARENA_ALIGN 16
#define FAKE_STATE_BYTES 4
#define FAKE_INPUT_COUNT 2
#define FAKE_OUTPUT_COUNT 3
#define FAKE_INPUT_0_BYTES 16
#define FAKE_INPUT_0_SCALE 0.5f
#define FAKE_INPUT_0_ZERO_POINT (-3)
#define FAKE_INPUT_1_BYTES 8
#define FAKE_OUTPUT_0_BYTES 16
#define FAKE_OUTPUT_0_SCALE 0.25f
#define FAKE_OUTPUT_0_ZERO_POINT 1
#define FAKE_OUTPUT_1_BYTES 4
#define FAKE_OUTPUT_2_BYTES 4
#define FAKE_HASH "0123456789abcdef"

typedef enum {
    FAKE_OK = 0,
    FAKE_ERROR_NULL,
    FAKE_ERROR_MISALIGNED,
    FAKE_ERROR_ABORTED
} fake_status_t;

typedef struct {
    void *arena;
    void *state;
} fake_memory_t;

typedef struct {
    uint8_t *arena;
    int32_t *state;
#ifdef SMELT_STEP_CALLBACK
    int (*callback)(void *user, int step, const void *output, uint32_t bytes);
    void *user;
#endif
} fake_t;

fake_status_t fake_init(fake_t *context, const fake_memory_t *memory);
void *fake_input(fake_t *context, int index);
const void *fake_output(const fake_t *context, int index);
fake_status_t fake_invoke(fake_t *context);

#ifdef SMELT_STEP_CALLBACK
void fake_set_step_callback(fake_t *context,
                            int (*callback)(void *user, int step, const void *output,
                                            uint32_t bytes),
                            void *user);
#endif

#endif
