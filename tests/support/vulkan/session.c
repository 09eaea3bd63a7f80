/*
 * Opens devices for the network -DNETWORK=..., runs it, closes: `session DEVICES INFERENCES [CACHE]`.
 * Prints errors to standard output, and returns 1 if opening fails and 2 if running fails.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define OF(what) PASTE(NETWORK, what)
#define QUOTE_(a) #a
#define QUOTE(a) QUOTE_(a)

#include QUOTE(NETWORK.h)

#define MOST 4

static OF(_gpu_t) gpus[MOST];
static OF(_t) networks[MOST];

static int open_all(int count, const char *cache) {
    for (int i = 0; i < count; ++i) {
        static smelt_vulkan_cache_t room;
        smelt_vulkan_options_t options = {SMELT_VULKAN_ANY_DEVICE, 0, cache, &room, NULL};
        const char *const device = getenv("DEVICE");
        options.device = device == NULL ? SMELT_VULKAN_ANY_DEVICE : (int32_t)atoi(device);
        options.plain = getenv("PLAIN") != NULL;
        if (OF(_gpu_open)(&gpus[i], &options) != 0) {
            printf("%s\n", gpus[i].vulkan.message);
            return 1;
        }
        const OF(_memory_t) memory = {&gpus[i]};
        if (OF(_init)(&networks[i], &memory) != 0) {
            printf("init failed\n");
            return 1;
        }
    }
    return 0;
}

static int run_all(int count, int inferences) {
    for (int turn = 0; turn < inferences; ++turn) {
        for (int i = 0; i < count; ++i) {
            memset(OF(_input)(&networks[i], 0), turn + i, 16);
            if (OF(_invoke)(&networks[i]) != 0) {
                printf("%s\n", gpus[i].vulkan.message);
                if (OF(_invoke)(&networks[i]) == 0) {
                    printf("it ran again\n");
                }
                return 2;
            }
            printf("%02x", ((const uint8_t *)OF(_output)(&networks[i], 0))[0]);
        }
    }
    printf("\n");
    return 0;
}

int main(int argc, char **argv) {
    const int count = atoi(argv[1]);
    int status = open_all(count, argc > 3 ? argv[3] : NULL);
    if (status == 0) {
        status = run_all(count, atoi(argv[2]));
    }
    for (int i = 0; i < count; ++i) {
        OF(_gpu_close)(&gpus[i]);
        OF(_gpu_close)(&gpus[i]); /* closing twice must do nothing */
    }
    return status;
}
