/* The part of Zephyr's kernel that the sample of an export uses. */
#ifndef KERNEL_H
#define KERNEL_H

#include <stdint.h>

#define __aligned(bytes) __attribute__((aligned(bytes)))

static inline uint32_t k_cycle_get_32(void) {
    return 0;
}

static inline uint32_t k_cyc_to_us_floor32(uint32_t cycles) {
    return cycles;
}

#endif
