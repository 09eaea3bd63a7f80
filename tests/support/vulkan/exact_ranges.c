/*
 * Makes a network's program check its accesses. Loaded before Vulkan's loader (LD_PRELOAD), it gives
 * each dispatch descriptors of exactly the ranges that its operands may access, read-only or
 * write-only, although the program binds the whole arena. So the validation layer knows the accesses
 * of a dispatch, and a driver that checks bounds stops all others. With FAST, the device reports to
 * be a GPU with fast products of four bytes, so that the program uses the modules for such devices.
 *
 * The file EXACT_RANGES has 32-bit words. First, the number of modules; for each, the program's own
 * SPIR-V and its replacement, both as size in words and words. Then, the number of dispatches; for
 * each, the number of operands; for each operand, 1 for the weights or 0 for the arena, offset and
 * bytes.
 *
 * If DROP_BARRIERS names a file, each command buffer is recorded again once per barrier, without
 * that barrier. The file gets a line for each: the number of the dispatch that did not wait, and the
 * bytes of the validation layer's new messages in VALIDATION_LOG.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <vulkan/vulkan.h>

#define MAX_MODULES 256
#define MAX_DISPATCHES 1024
#define MAX_OPERANDS 16
#define MAX_PUSHED 128
#define MAX_COMMANDS (4 * MAX_DISPATCHES)

typedef struct {
    uint32_t size;
    const uint32_t *words;
} code_t;

static code_t released[MAX_MODULES], exact[MAX_MODULES];
static const uint32_t *operands[MAX_DISPATCHES];
/* A command; `barrier.sType` is 0 if the command binds or dispatches. */
typedef struct {
    VkPipeline pipeline;
    uint32_t dispatch, groups[3], pushed_bytes;
    uint8_t pushed[MAX_PUSHED];
    VkPipelineStageFlags from, to;
    VkMemoryBarrier barrier;
} command_t;

static command_t commands_of_buffer[MAX_COMMANDS];
static uint32_t module_count, dispatch_count, dispatched, command_count, pushed_bytes;
static uint8_t pushed[MAX_PUSHED];
static VkDevice the_device;
static VkCommandPool command_pool;
static VkDescriptorSetLayout set_layout;
static VkDescriptorPool pool;
static VkDescriptorSet sets[MAX_DISPATCHES];
static VkPipelineLayout pipeline_layout;

static void end(const char *why) {
    fprintf(stderr, "exact_ranges: %s\n", why);
    exit(3);
}

#define NEXT(name) PFN_##name const next = (PFN_##name)dlsym(RTLD_NEXT, #name)

static const uint32_t *code(code_t *found, const uint32_t *words) {
    found->size = *words++;
    found->words = words;
    return words + found->size;
}

__attribute__((constructor)) static void read_ranges(void) {
    const char *const path = getenv("EXACT_RANGES");
    FILE *const file = path == NULL ? NULL : fopen(path, "rb");
    if (file == NULL) {
        return; /* another process that the program started */
    }
    fseek(file, 0, SEEK_END);
    const size_t bytes = (size_t)ftell(file);
    uint32_t *const data = malloc(bytes + 4);
    rewind(file);
    if (data == NULL || fread(data, 1, bytes, file) != bytes) {
        end("the file cannot be read");
    }
    fclose(file);
    const uint32_t *word = data;
    module_count = *word++;
    for (uint32_t i = 0; i < module_count; ++i) {
        word = code(&released[i], word);
        word = code(&exact[i], word);
    }
    dispatch_count = *word++;
    for (uint32_t i = 0; i < dispatch_count; ++i) {
        operands[i] = word;
        word += 1 + 3 * *word;
    }
}

void vkGetPhysicalDeviceProperties2(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *found) {
    NEXT(vkGetPhysicalDeviceProperties2);
    next(device, found);
    if (getenv("FAST") != NULL) {
        ((VkPhysicalDeviceShaderIntegerDotProductPropertiesKHR *)found->pNext)
            ->integerDotProduct4x8BitPackedSignedAccelerated = VK_TRUE;
    }
}

void vkGetPhysicalDeviceProperties(VkPhysicalDevice device, VkPhysicalDeviceProperties *found) {
    NEXT(vkGetPhysicalDeviceProperties);
    next(device, found);
    if (getenv("FAST") != NULL) {
        found->deviceType = VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
    }
}

VkResult vkCreateShaderModule(VkDevice device, const VkShaderModuleCreateInfo *info,
                              const VkAllocationCallbacks *allocator, VkShaderModule *module) {
    NEXT(vkCreateShaderModule);
    VkShaderModuleCreateInfo other = *info;
    for (uint32_t i = 0; i < module_count; ++i) {
        if (4 * released[i].size == info->codeSize &&
            memcmp(released[i].words, info->pCode, info->codeSize) == 0) {
            other.codeSize = 4 * exact[i].size;
            other.pCode = exact[i].words;
            return next(device, &other, allocator, module);
        }
    }
    end("a module is not known");
    return VK_ERROR_UNKNOWN;
}

VkResult vkCreateDescriptorSetLayout(VkDevice device, const VkDescriptorSetLayoutCreateInfo *info,
                                     const VkAllocationCallbacks *allocator,
                                     VkDescriptorSetLayout *layout) {
    NEXT(vkCreateDescriptorSetLayout);
    VkDescriptorSetLayoutBinding bindings[MAX_OPERANDS];
    VkDescriptorSetLayoutCreateInfo other = *info;
    for (uint32_t i = 0; i < MAX_OPERANDS; ++i) {
        bindings[i] = info->pBindings[0];
        bindings[i].binding = i;
    }
    other.bindingCount = MAX_OPERANDS;
    other.pBindings = bindings;
    const VkResult result = next(device, &other, allocator, layout);
    set_layout = *layout;
    return result;
}

VkResult vkCreateDescriptorPool(VkDevice device, const VkDescriptorPoolCreateInfo *info,
                                const VkAllocationCallbacks *allocator, VkDescriptorPool *made) {
    NEXT(vkCreateDescriptorPool);
    VkDescriptorPoolCreateInfo other = *info;
    const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                       (dispatch_count + 1) * MAX_OPERANDS};
    other.maxSets = dispatch_count + 1;
    other.poolSizeCount = 1;
    other.pPoolSizes = &size;
    const VkResult result = next(device, &other, allocator, made);
    pool = *made;
    return result;
}

/* The program binds the arena and the weights here. */
void vkUpdateDescriptorSets(VkDevice device, uint32_t count, const VkWriteDescriptorSet *writes,
                            uint32_t copies, const VkCopyDescriptorSet *copied) {
    NEXT(vkUpdateDescriptorSets);
    const VkDescriptorBufferInfo *const whole = writes->pBufferInfo;
    if (count != 1 || writes->descriptorCount != 2) {
        end("arena and weights are expected");
    }
    for (uint32_t d = 0; d < dispatch_count; ++d) {
        const VkDescriptorSetAllocateInfo info = {
            VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, NULL, pool, 1, &set_layout};
        VkDescriptorBufferInfo ranges[MAX_OPERANDS];
        VkWriteDescriptorSet write = *writes;
        if (vkAllocateDescriptorSets(device, &info, &sets[d]) != VK_SUCCESS) {
            end("vkAllocateDescriptorSets");
        }
        for (uint32_t i = 0; i < *operands[d]; ++i) {
            const uint32_t *const operand = operands[d] + 1 + 3 * i;
            ranges[i].buffer = whole[operand[0]].buffer;
            ranges[i].offset = operand[1];
            ranges[i].range = operand[2];
        }
        write.dstSet = sets[d];
        write.descriptorCount = *operands[d];
        write.pBufferInfo = ranges;
        next(device, 1, &write, copies, copied);
    }
}

void vkCmdBindDescriptorSets(VkCommandBuffer commands, VkPipelineBindPoint point,
                             VkPipelineLayout layout, uint32_t first, uint32_t count,
                             const VkDescriptorSet *bound, uint32_t offset_count,
                             const uint32_t *offsets) {
    (void)commands, (void)point, (void)first, (void)count, (void)bound;
    (void)offset_count, (void)offsets;
    pipeline_layout = layout;
}

VkResult vkAllocateCommandBuffers(VkDevice device, const VkCommandBufferAllocateInfo *info,
                                  VkCommandBuffer *buffers) {
    NEXT(vkAllocateCommandBuffers);
    the_device = device;
    command_pool = info->commandPool;
    return next(device, info, buffers);
}

static command_t *added(void) {
    if (command_count == MAX_COMMANDS) {
        end("too many commands");
    }
    return memset(&commands_of_buffer[command_count++], 0, sizeof(command_t));
}

void vkCmdPushConstants(VkCommandBuffer commands, VkPipelineLayout layout, VkShaderStageFlags stage,
                        uint32_t offset, uint32_t size, const void *values) {
    (void)commands, (void)layout, (void)stage;
    if (offset != 0 || size > MAX_PUSHED) {
        end("all push constants of a dispatch are expected, and no more than every device has");
    }
    pushed_bytes = size;
    memcpy(pushed, values, size);
}

void vkCmdPipelineBarrier(VkCommandBuffer commands, VkPipelineStageFlags from,
                          VkPipelineStageFlags to, VkDependencyFlags dependency, uint32_t count,
                          const VkMemoryBarrier *barriers, uint32_t buffer_count,
                          const VkBufferMemoryBarrier *buffers, uint32_t image_count,
                          const VkImageMemoryBarrier *images) {
    (void)commands, (void)dependency, (void)buffers, (void)images;
    command_t *const command = added();
    if (count != 1 || buffer_count + image_count != 0) {
        end("a barrier is not one of memory");
    }
    command->dispatch = dispatched;
    command->from = from;
    command->to = to;
    command->barrier = *barriers;
}

void vkCmdBindPipeline(VkCommandBuffer commands, VkPipelineBindPoint point, VkPipeline pipeline) {
    (void)commands, (void)point;
    added()->pipeline = pipeline;
}

void vkCmdDispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z) {
    (void)commands;
    command_t *const command = added();
    if (dispatched == dispatch_count) {
        end("there are more dispatches than known");
    }
    command->dispatch = dispatched++;
    command->groups[0] = x;
    command->groups[1] = y;
    command->groups[2] = z;
    command->pushed_bytes = pushed_bytes;
    memcpy(command->pushed, pushed, pushed_bytes);
}

/* Record all commands except command `without` into a command buffer. */
static void play(VkCommandBuffer commands, uint32_t without) {
    PFN_vkCmdBindDescriptorSets const bind_set =
        (PFN_vkCmdBindDescriptorSets)dlsym(RTLD_NEXT, "vkCmdBindDescriptorSets");
    PFN_vkCmdBindPipeline const bind =
        (PFN_vkCmdBindPipeline)dlsym(RTLD_NEXT, "vkCmdBindPipeline");
    PFN_vkCmdPipelineBarrier const wait =
        (PFN_vkCmdPipelineBarrier)dlsym(RTLD_NEXT, "vkCmdPipelineBarrier");
    PFN_vkCmdPushConstants const push =
        (PFN_vkCmdPushConstants)dlsym(RTLD_NEXT, "vkCmdPushConstants");
    PFN_vkCmdDispatch const dispatch = (PFN_vkCmdDispatch)dlsym(RTLD_NEXT, "vkCmdDispatch");
    for (uint32_t i = 0; i < command_count; ++i) {
        const command_t *const c = &commands_of_buffer[i];
        if (i == without) {
            continue;
        }
        if (c->barrier.sType != 0) {
            wait(commands, c->from, c->to, 0, 1, &c->barrier, 0, NULL, 0, NULL);
        } else if (c->pipeline != VK_NULL_HANDLE) {
            bind(commands, VK_PIPELINE_BIND_POINT_COMPUTE, c->pipeline);
        } else {
            bind_set(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_layout, 0, 1,
                     &sets[c->dispatch], 0, NULL);
            push(commands, pipeline_layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, c->pushed_bytes,
                 c->pushed);
            dispatch(commands, c->groups[0], c->groups[1], c->groups[2]);
        }
    }
}

static long messages(void) {
    struct stat found;
    fflush(NULL);
    return stat(getenv("VALIDATION_LOG"), &found) == 0 ? (long)found.st_size : 0;
}

static void play_without_each_barrier(const char *path) {
    NEXT(vkEndCommandBuffer);
    FILE *const file = fopen(path, "a");
    uint32_t first = 0;
    while (commands_of_buffer[first].barrier.sType != 0 ||
           commands_of_buffer[first].pipeline != VK_NULL_HANDLE) {
        ++first; /* barriers before the first dispatch order other submissions */
    }
    for (uint32_t i = first; file != NULL && i < command_count; ++i) {
        const command_t *const c = &commands_of_buffer[i];
        if (c->barrier.sType == 0 || c->to != VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT) {
            continue;
        }
        const VkCommandBufferAllocateInfo info = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                  NULL, command_pool,
                                                  VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
        const VkCommandBufferBeginInfo begin = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, NULL,
                                                0, NULL};
        const long before = messages();
        VkCommandBuffer commands;
        vkAllocateCommandBuffers(the_device, &info, &commands);
        ((PFN_vkBeginCommandBuffer)dlsym(RTLD_NEXT, "vkBeginCommandBuffer"))(commands, &begin);
        play(commands, i);
        next(commands);
        fprintf(file, "%u %ld\n", c->dispatch, messages() - before);
    }
    if (file != NULL) {
        fclose(file);
    }
}

VkResult vkEndCommandBuffer(VkCommandBuffer commands) {
    NEXT(vkEndCommandBuffer);
    play(commands, UINT32_MAX);
    const VkResult result = next(commands);
    if (getenv("DROP_BARRIERS") != NULL) {
        play_without_each_barrier(getenv("DROP_BARRIERS"));
    }
    command_count = 0;
    return result;
}
