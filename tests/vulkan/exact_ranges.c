/*
 * Makes a network's program a checking one: loaded before Vulkan's loader (LD_PRELOAD), it gives
 * each dispatch descriptors of exactly what its operands may touch, read only or written only,
 * where the program binds the whole arena. So the validation layer sees what a dispatch touches,
 * and a driver that checks bounds lets nothing else through.
 *
 * The file EXACT_RANGES has 32-bit words: the number of modules, and of each the sizes in words and
 * the words of the program's own SPIR-V and of the one to take instead; the number of dispatches,
 * and of each its number of operands and of each of them 1 for the weights or 0 for the arena,
 * offset and bytes. DROP_BARRIER is the number of a dispatch that shall not wait.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

#define MAX_MODULES 256
#define MAX_DISPATCHES 1024
#define MAX_OPERANDS 16

typedef struct {
    uint32_t size;
    const uint32_t *words;
} code_t;

static code_t released[MAX_MODULES], exact[MAX_MODULES];
static const uint32_t *operands[MAX_DISPATCHES];
static uint32_t module_count, dispatch_count, recorded, recorded_before, dropped = UINT32_MAX;
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
    const char *const path = getenv("EXACT_RANGES"), *const drop = getenv("DROP_BARRIER");
    FILE *const file = path == NULL ? NULL : fopen(path, "rb");
    if (file == NULL) {
        return; /* some other process that the program started */
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
    dropped = drop == NULL ? UINT32_MAX : (uint32_t)atoi(drop);
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

VkResult vkBeginCommandBuffer(VkCommandBuffer commands, const VkCommandBufferBeginInfo *info) {
    NEXT(vkBeginCommandBuffer);
    recorded_before = recorded;
    return next(commands, info);
}

void vkCmdPipelineBarrier(VkCommandBuffer commands, VkPipelineStageFlags from,
                          VkPipelineStageFlags to, VkDependencyFlags dependency, uint32_t count,
                          const VkMemoryBarrier *barriers, uint32_t buffer_count,
                          const VkBufferMemoryBarrier *buffers, uint32_t image_count,
                          const VkImageMemoryBarrier *images) {
    NEXT(vkCmdPipelineBarrier);
    if (recorded == dropped && recorded > recorded_before) {
        return;
    }
    next(commands, from, to, dependency, count, barriers, buffer_count, buffers, image_count,
         images);
}

void vkCmdDispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z) {
    NEXT(vkCmdDispatch);
    PFN_vkCmdBindDescriptorSets const bind =
        (PFN_vkCmdBindDescriptorSets)dlsym(RTLD_NEXT, "vkCmdBindDescriptorSets");
    if (recorded == dispatch_count) {
        end("there are more dispatches than known");
    }
    bind(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_layout, 0, 1, &sets[recorded], 0, NULL);
    next(commands, x, y, z);
    ++recorded;
}
